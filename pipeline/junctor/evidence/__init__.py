"""Evidence tables: reading them, and their encoded form."""
