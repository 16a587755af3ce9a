"""Features of the cost model: counts of work, a module for each backend; `registry` lists them."""
