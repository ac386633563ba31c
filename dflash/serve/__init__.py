"""HTTP and agents: requests in, wire events out. `python -m dflash.serve` starts it."""
