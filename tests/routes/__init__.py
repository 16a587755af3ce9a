"""Who answers the rows of a fixed set of batches: the record of all choices."""
