"""The program that compiles grammars first; `CheckProcess` runs it.

It reads the vocabulary once, then one grammar after the other. Each is compiled in a fork of this small process, made in
advance. So a crash, a stack overflow or an allocation beyond a limit ends only that fork, and nothing is built anew.
"""

import gc
import json
import os
import resource
import signal
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dflash.errors import RequestError
from dflash.generation.grammar import limits
from dflash.generation.grammar.checking.frames import packed, read_message
from dflash.generation.grammar.compilation import compile_source, guidance_tokenizer, with_stack
from dflash.generation.grammar.gbnf import lark_of
from dflash.json_types import JsonObject

_INPUT_ENDED = 3
"""Exit code of a fork that has found the end of the input."""


class ByteEncoder:
    """Converts certain text of a grammar to one token for each byte, which is all that a check needs."""

    def __init__(self, tokens: list[bytes], added: list[int], ends: Sequence[int]) -> None:
        self.eos_token_id, self.bos_token_id = ends[0], None
        self.tokens, self.special_token_ids = tokens, added
        self._of_byte = {text: token for token, text in enumerate(tokens) if len(text) == 1}

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return [self._of_byte[bytes([byte])] for byte in text.encode()]


def main() -> None:
    """Serve until the end of the input."""
    tokenizer = _vocabulary(*(_read() for _ in range(3)))
    gc.collect()
    gc.freeze()  # lets forks share the pages of the vocabulary
    _write({"ready": True})
    while True:
        pid = os.fork()
        if not pid:
            _serve_one(tokenizer)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == _INPUT_ENDED:
            return
        if status:
            _write({"ended": status})


def _vocabulary(head: bytes, lengths: bytes, joined: bytes) -> Any:
    known, tokens, start = json.loads(head), list[bytes](), 0
    for length in array("I", lengths):
        tokens.append(joined[start : start + length])
        start += length
    return guidance_tokenizer(ByteEncoder(tokens, known["added"], known["ends"]), known["ends"])


def _serve_one(tokenizer: Any) -> None:
    """Wait for a grammar, check it, write the verdict and end this process."""
    status = 1
    try:
        with_stack(limits.CHECK_STACK, partial(compile_source, tokenizer, 'start: "a"'))  # copies pages before the wait
        wanted = json.loads(_read())
        os.ftruncate(2, os.lseek(2, 0, os.SEEK_SET))
        _limit()
        try:
            verdict = with_stack(limits.CHECK_STACK, partial(_verdict, tokenizer, **wanted))
        except MemoryError:
            verdict = {"ended": -signal.SIGABRT}  # as at an allocation of the library
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(verdict)
        status = 0
    except EOFError:
        status = _INPUT_ENDED
    finally:
        os._exit(status)


def _verdict(tokenizer: Any, source: str, *, gbnf: bool) -> JsonObject:
    try:
        lark = lark_of(source) if gbnf else source
        compile_source(tokenizer, lark)
    except RequestError as error:
        return {"error": str(error)}
    return {"source": lark if gbnf else ""}


def _limit() -> None:
    """Limit CPU time, time and memory of this process; the signal that ends it tells which limit it was."""
    signal.setitimer(signal.ITIMER_PROF, limits.CHECK_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, limits.CHECK_WALL_SECONDS)
    with suppress(OSError):  # other systems than Linux have no such file
        n_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        _lower(resource.RLIMIT_AS, n_bytes + limits.CHECK_STACK + limits.CHECK_BYTES)
    _lower(resource.RLIMIT_CORE, 1)  # one byte is no dump; 0 would still start a program that collects dumps


def _lower(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _read() -> bytes:
    return read_message(partial(os.read, 0))


def _write(values: JsonObject) -> None:
    data = packed(json.dumps(values).encode())
    while data:
        data = data[os.write(1, data) :]
