"""`python -m dflash.serve`: see `dflash.cli.serve`."""

import sys

from dflash.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
