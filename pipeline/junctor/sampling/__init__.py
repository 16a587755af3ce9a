"""Posteriors by importance sampling, with their standard errors, for networks beyond exact reach."""
