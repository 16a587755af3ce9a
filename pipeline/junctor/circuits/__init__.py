"""Arithmetic circuits of networks whose tables are full of zeros and equal entries: compiled once, for many rows."""
