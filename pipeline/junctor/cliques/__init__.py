"""Stored clique tables (Hugin architecture) and joint posteriors."""
