"""Tables in memory: their axes, the NumPy reference of every kernel, permutations and views."""
