"""What runs a plan for a block of cases: NumPy, compiled CPU code, GPU, and a tree for each row."""
