"""Networks, questions about them, answers and errors: what everything else speaks of."""
