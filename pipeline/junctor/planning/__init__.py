"""Planning: from the shape of a network and an evidence pattern to a frozen plan. Integers in, records out."""
