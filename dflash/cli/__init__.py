"""`python -m dflash ...`: a module a command, each with `add_arguments` and `main`."""


def main() -> int:
    """Run `dflash.__main__`. Z Lab's command is ``dflash.cli:main``, which is this function where both are installed."""
    from dflash.__main__ import main as run

    return run()
