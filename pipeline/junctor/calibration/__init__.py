"""Measurements from which the cost model of this machine is fitted."""
