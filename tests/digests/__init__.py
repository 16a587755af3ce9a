"""Digests of what a fixed list of jobs gives, to compare with those of another day: what may not change by accident."""
