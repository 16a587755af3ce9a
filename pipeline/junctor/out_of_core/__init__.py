"""Propagation in chunks, one case at a time, of plans that exceed the memory."""
