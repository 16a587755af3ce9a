"""The machine: cores, memory, devices, files, threads, Dask clusters, settings."""
