"""Event loops on which servers run."""

import pytest

BOTH_LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"], indirect=True, scope="session")
"""Mark of the files of `tests/serve` whose tests run on asyncio and on uvloop beside httptools; see the fixture `loop`."""

HIDDEN = {"asyncio": "import sys; sys.modules.update(uvloop=None, httptools=None)", "uvloop": "import httptools, uvloop"}
"""First line of a program with that event loop."""
