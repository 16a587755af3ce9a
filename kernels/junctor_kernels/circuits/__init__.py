"""Arithmetic circuits: compiled from tables by search, and evaluated over blocks of cases, in compiled code (Numba)."""
