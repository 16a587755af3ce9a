"""A run from files to files: ingestion, partitions, storage, results."""
