"""NumPy and device kernels on tables and axes; they know no networks."""
