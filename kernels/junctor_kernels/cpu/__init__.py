"""Compiled kernels of contractions and plans on a CPU (Numba)."""
