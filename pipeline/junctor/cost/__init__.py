"""What a plan costs in seconds: features counted, measurements, fitted coefficients."""
