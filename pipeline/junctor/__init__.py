"""Junctor: exact answers from discrete Bayesian and Markov networks for whole tables of evidence at once."""
