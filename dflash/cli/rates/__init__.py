"""Rates of one model, measured and compared with the bandwidth of a copy."""
