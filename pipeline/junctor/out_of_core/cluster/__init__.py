"""Propagation in chunks over the workers of a Dask cluster."""
