"""The page of the fit of a hidden Markov model: one HTML file that needs no network."""
