"""A join tree for every row: compiled planning and propagation."""
