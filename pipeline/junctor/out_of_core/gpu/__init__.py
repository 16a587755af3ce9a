"""Propagation in chunks on the GPUs of one process."""
