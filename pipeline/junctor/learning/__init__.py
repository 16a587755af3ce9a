"""Parameters from tables of evidence: expected counts, and expectation maximisation (EM)."""
