"""What can be asked of every row: a module for each question."""
