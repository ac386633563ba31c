"""Translate out-of-memory errors of the system to `OutOfMemory`."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dflash.errors import OutOfMemory
from dflash.model.gguf.header import quoted


@contextmanager
def memory_errors(name: object, remedy: str) -> Iterator[None]:
    """Raise `OutOfMemory` in place of MemoryError and of an OSError with ENOMEM."""
    try:
        yield
    except (MemoryError, OSError) as error:
        # mmap raises an OSError with ENOMEM, NumPy a MemoryError
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise OutOfMemory(f"{quoted(str(name))}: out of memory while it was loaded ({error}): {remedy}") from error
