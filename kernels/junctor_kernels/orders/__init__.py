"""Compiled search for elimination orders: greedy, then simulated annealing."""
