"""Kernels of importance sampling and loopy belief propagation, CPU and GPU."""
