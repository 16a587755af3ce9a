"""The batch engine: patterns of evidence, how each group of rows is answered, and forecasts."""
