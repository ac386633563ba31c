"""`python -m dflash ...`: a module a command, each with `add_arguments` and `main`."""
