"""From a network and an evidence pattern to a plan, without arrays or devices."""
