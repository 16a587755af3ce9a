"""Kernels of hidden Markov models: most probable paths and posteriors, CPU and GPU."""
