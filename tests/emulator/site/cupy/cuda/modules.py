"""Modules: libraries that g++ makes of a CUDA source when a kernel of it is launched first; most never are."""

import atexit
import ctypes
import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from emulator import build, library
from emulator.ptx import UnknownPTX

from cupy.cuda import device
from cupy.cuda.errors import CUDADriverError

_FOLDER = Path(tempfile.mkdtemp(prefix="emulator-"))
_numbers = itertools.count()
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


class Module:
    def load(self, code):
        try:
            self._source = json.loads(code)
        except ValueError as error:
            raise CUDADriverError(200, "no code of the emulator") from error
        self._device, self._path = device.current(), None
        self._compile = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._load)

    def get_function(self, name):
        return SimpleNamespace(ptr=library.emu_function(name.encode(), self._device, self._compile), module=self)

    def _load(self, function):
        """Compile if that was not done, and complete a function."""
        if self._path is None:
            try:
                code = build.kernel(*self._source)
            except (build.CompileError, UnknownPTX) as error:
                print(error, file=sys.stderr)
                return
            self._path = _FOLDER / f"{next(_numbers)}.so"
            self._path.write_bytes(code)
        library.emu_load(ctypes.c_void_p(function), bytes(self._path))
