"""The process that checks grammars, seen from the engine's process."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from dflash.errors import DFlashError
from dflash.generation.grammar.checking.frames import packed, read_message

_PROGRAM = "import sys; sys.path += sys.argv[1:]; from dflash.generation.grammar.checking.program import main; main()"
_SHOWN = 400
"""Characters of the process's last words in an error."""


class CheckProcess:
    """A running `dflash.generation.grammar.checking.program`.

    seconds: seconds for the process to start and to build the vocabulary.

    Started by the interpreter of this process from the modules of this process, wherever they were imported from. `site`,
    the user's script and Python's environment variables play no part. A session of its own keeps interrupts typed at a
    terminal away. The process ends when the connection is closed, also if this process is killed.
    """

    def __init__(self, vocabulary: Sequence[bytes], seconds: float) -> None:
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._connection, other = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with other:
                self._process = subprocess.Popen(
                    [sys.executable or "python", "-P", "-S", "-c", _PROGRAM, *_module_paths()],
                    stdin=other.fileno(),
                    stdout=other.fileno(),
                    stderr=self._messages,
                    cwd=os.sep,
                    env=_environment(),
                    start_new_session=True,
                )
            self._connection.settimeout(seconds)
            for part in vocabulary:
                self._connection.sendall(packed(part))
            self.receive(seconds)
        except (OSError, EOFError, ValueError) as error:
            reason = self._last_words() or str(error)
            self.close()
            message = f"grammars: the process that checks them ({sys.executable}) does not start: {reason}"
            raise DFlashError(message) from error
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def send(self, message: bytes, seconds: float) -> None:
        """Send a message."""
        self._connection.settimeout(seconds)
        self._connection.sendall(packed(message))

    def receive(self, seconds: float) -> bytes:
        """Wait for a message."""
        self._connection.settimeout(seconds)
        return read_message(self._connection.recv)

    def hang_up(self) -> None:
        """Wake the thread that waits for a message, if there is one. Called in any thread."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process and wait for its end; safe to call twice."""
        self.hang_up()
        self._connection.close()
        if self._process is not None:
            with suppress(ProcessLookupError):  # its forks are in its session
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._messages.close()

    def _last_words(self) -> str:
        """Return the last line that the process has written to stderr."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        return lines[-1][-_SHOWN:] if lines else ""


def _module_paths() -> list[str]:
    """Return the folders in which this process finds modules, those of dflash and of llguidance first."""
    specs = [find_spec(name) for name in ("dflash", "llguidance")]
    first = [Path(spec.origin).parent.parent for spec in specs if spec is not None and spec.origin is not None]
    paths = [*first, *(Path(path).absolute() for path in sys.path)]
    return list(dict.fromkeys(str(path) for path in paths if path.exists()))


def _environment() -> dict[str, str]:
    """Return the environment variables without those of Python; `PYTHONHOME` matters unless this process ignores it, too."""
    home = () if sys.flags.ignore_environment else ("PYTHONHOME",)
    found = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") or name in home}
    return {**found, "MALLOC_ARENA_MAX": "1"}  # arenas reserve address space, which is limited
