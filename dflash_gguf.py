"""Entry point of the command `dflash`, in a module of its own name: Z Lab's package is imported as `dflash`, too."""

import sys
from importlib.util import find_spec


def main() -> int:
    """Run the command `dflash`; return its exit code."""
    try:
        from dflash.__main__ import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "dflash":
            raise
        found = find_spec("dflash")
        place = "nothing" if found is None else found.origin
        print(
            f"dflash: Python imports {place} as dflash, which is another package than dflash-gguf, as Z Lab's; "
            "install dflash-gguf into an environment of its own",
            file=sys.stderr,
        )
        return 1
    return run()
