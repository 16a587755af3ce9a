"""Counts of work by which the cost model is fitted, one module for each backend."""
