"""Verdicts of the process that compiles grammars before the engine's process does."""

import json
import signal
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from dflash.errors import Cancelled, DFlashError, PoolExhausted, RequestError
from dflash.generation.grammar.checking.process import CheckProcess
from dflash.generation.grammar.limits import CHECK_BYTES, CHECK_SECONDS, CHECK_WALL_SECONDS, START_SECONDS
from dflash.json_types import JsonObject

_MAX_VERDICTS = 64
"""Grammars whose verdict is remembered: an agent sends the same tools with each request."""

_TOO_DEEP = "is nested too deeply, or its rules and references lead too far into each other"
_REFUSED = {
    "SIGSEGV": _TOO_DEEP,
    "SIGBUS": _TOO_DEEP,
    "SIGABRT": f"takes more than {CHECK_BYTES >> 20} MB of memory to compile",
    "SIGKILL": "takes more memory to compile than the machine has",
    "SIGPROF": f"takes more than {CHECK_SECONDS:g} s of CPU time to compile",
}
"""Refusals by the name of the signal that has ended the check; not every system has all of them."""


class GrammarChecker:
    """Compiles each grammar in a process of its own before the engine's process does.

    A grammar that crashes that process, or takes too much memory or time, is refused: the engine's process never sees it.

    added, ends: tokens that are no pieces of text; tokens that end an output.

    The process starts at once, and nobody waits for it but the first grammar. It takes 0.1 s, and 2 s and 200 MB with a
    vocabulary of 248,320 tokens. If it dies it is started again. If it can't be started, each grammar is refused with the
    cause.
    """

    def __init__(self, tokens: Sequence[bytes], added: Sequence[int], ends: Sequence[int]) -> None:
        head = json.dumps({"added": list(added), "ends": list(ends)}).encode()
        self._vocabulary = head, array("I", map(len, tokens)).tobytes(), b"".join(tokens)
        self._lock, self._closed = threading.Lock(), False
        self._process: CheckProcess | None = None
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        threading.Thread(target=self._warm, name="dflash-check", daemon=True).start()

    def check(self, source: str, *, gbnf: bool = False) -> str:
        """Return the grammar to compile here: the given one, or in Lark one that was in GBNF."""
        key = sha256(f"{gbnf} {source}".encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            if key not in self._verdicts:
                self._verdicts[key] = self._converted(json.dumps({"source": source, "gbnf": gbnf}).encode())
            self._verdicts.move_to_end(key)
            if len(self._verdicts) > _MAX_VERDICTS:
                self._verdicts.popitem(last=False)
            return self._verdicts[key] or source

    def close(self) -> None:
        """End the process; safe to call twice, and while another thread waits for a verdict."""
        self._closed = True
        process = self._process
        if process is not None:
            process.hang_up()
        with self._lock:
            self._stop()

    def _warm(self) -> None:
        with self._lock, suppress(DFlashError):  # the next grammar tries again and raises the error
            self._running()

    def _converted(self, wanted: bytes) -> str:
        """Return the conversion of a grammar, or nothing if it stays; raise the error if the verdict is bad."""
        try:
            verdict = self._asked(wanted)
        except EOFError:  # the process was killed
            try:
                verdict = self._asked(wanted)
            except EOFError:
                raise DFlashError("grammars: the process that checks them was killed twice") from None
        if "ended" in verdict:
            status = verdict["ended"]
            name = next((each.name for each in signal.Signals if each == -status), "")
            if name == "SIGALRM":
                raise PoolExhausted("the machine has no time to check the grammar; try again later")
            raise RequestError(_REFUSED.get(name, f"could not be compiled: the check ended with status {status}"))
        if "error" in verdict:
            raise RequestError(verdict["error"])
        return verdict["source"]

    def _asked(self, wanted: bytes) -> JsonObject:
        process = self._running()
        try:
            process.send(wanted, CHECK_WALL_SECONDS)
            return json.loads(process.receive(2 * CHECK_WALL_SECONDS))
        except TimeoutError:
            self._stop()
            raise PoolExhausted("the machine has no time to check the grammar; try again later") from None
        except BaseException as error:  # after an interrupt, the next verdict would be this grammar's
            self._stop()
            if self._closed:
                raise Cancelled("the model is closed") from None
            raise (EOFError() if isinstance(error, OSError) else error) from None

    def _running(self) -> CheckProcess:
        if self._closed:
            raise Cancelled("the model is closed")
        if self._process is not None and not self._process.alive:
            self._stop()
        if self._process is None:
            self._process = CheckProcess(self._vocabulary, START_SECONDS)
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()
