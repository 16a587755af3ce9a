"""Shared by tests of several folders: oracles, drawn networks and evidence, comparisons."""
