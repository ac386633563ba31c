"""`python -m dflash.serve`: see `dflash.cli.serve`."""

import sys

from dflash.cli.serve import main

if __name__ == "__main__":
    sys.exit(main())
