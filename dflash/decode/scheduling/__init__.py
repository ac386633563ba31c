"""Which sessions run, and what goes into the next forward."""
