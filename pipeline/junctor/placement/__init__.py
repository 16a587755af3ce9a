"""Where the tables of a plan in chunks lie on one or several devices, and when."""
