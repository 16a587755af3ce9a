"""Ways to answer rows exactly: each prices, prepares and answers groups of rows."""
