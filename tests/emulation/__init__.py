"""A stand-in for a GPU: kernels compiled for the CPU, device memory in memory."""
