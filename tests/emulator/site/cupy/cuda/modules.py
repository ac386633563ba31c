"""Modules: libraries that g++ made of a CUDA source."""

import atexit
import itertools
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

from emulator import library

from cupy.cuda import device
from cupy.cuda.errors import CUDADriverError

_FOLDER = Path(tempfile.mkdtemp(prefix="emulator-"))
_numbers = itertools.count()
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


class Module:
    def load(self, code):
        if not code.startswith(b"\x7fELF"):
            raise CUDADriverError(200, "no code of the emulator")
        self._device = device.current()
        self._path = _FOLDER / f"{next(_numbers)}.so"
        self._path.write_bytes(code)

    def get_function(self, name):
        found = library.emu_function(bytes(self._path), name.encode(), self._device)
        if not found:
            raise CUDADriverError(500, f"no function {name}")
        return SimpleNamespace(ptr=found)
