"""The page of a fit: one HTML file that needs no network."""
