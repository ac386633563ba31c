"""Compilation by the library `llguidance`, in the process of the engine and, before, in the one that checks grammars."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from dflash.distribution import needed
from dflash.errors import RequestError
from dflash.generation.grammar.limits import COMPILE_FUEL, MAX_STATES, MAX_SYMBOLS, STEP_FUEL, STEP_ITEMS

_MAX_READ, _MAX_REASON = 4096, 200
"""Characters of a message of the library: it may repeat a whole pattern. Characters that an error shows."""

_OLDEST = 1, 9
"""Version of the library whose vocabularies take several end tokens."""

_stack = threading.Lock()


version = functools.cache(importlib.metadata.version)


def has_guidance() -> bool:
    """Return whether a library that is new enough is installed, without importing it, which takes 0.07 s."""
    try:
        return tuple(map(int, re.findall(r"\d+", version("llguidance"))[:2])) >= _OLDEST
    except importlib.metadata.PackageNotFoundError:
        return False


def guidance() -> ModuleType:
    """Return the library."""
    with needed("an output with response_format, regex, lark, grammar or tool_choice", "grammar", RequestError):
        import llguidance

        if not has_guidance():
            found, oldest = version("llguidance"), ".".join(map(str, _OLDEST))
            raise ImportError(f"version {found} is older than {oldest}", name="llguidance")
    return llguidance


def guidance_tokenizer(encoder: Callable[[str], list[int]], ends: Sequence[int]) -> Any:
    """Return the vocabulary in the form that llguidance needs; takes 0.03 s for 16,384 tokens and 1.3 s for 248,320."""
    library = guidance()
    n_vocab = len(encoder.tokens)  # type: ignore[attr-defined]  # read by llguidance, too
    return library.LLTokenizer(library.TokenizerWrapper(encoder), n_vocab=n_vocab, eos_token=list(ends))


def compile_source(tokenizer: Any, source: str) -> Any:
    """Compile a grammar and return llguidance's matcher before the first token."""
    library = guidance()
    limits = library.LLParserLimits(
        initial_lexer_fuel=COMPILE_FUEL,
        max_grammar_size=MAX_SYMBOLS,
        max_lexer_states=MAX_STATES,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        verbose_errors=False,
    )
    try:
        matcher = library.LLMatcher(tokenizer, source, log_level=0, limits=limits)
    except UnicodeEncodeError:
        raise RequestError("holds half a surrogate pair; it must be valid Unicode") from None
    if not matcher.is_error():
        matcher.compute_bitmask()  # lets every output share the first states
    if matcher.is_error():
        raise RequestError(reason_of(matcher.get_error()))
    return matcher


def reason_of(error: str) -> str:
    """Return the message of llguidance on one line."""
    if error.startswith("NoExtension"):
        return "no output matches the grammar"
    shown = re.split(r"\n[ \t]+\d+ \| ", error[:_MAX_READ])[0].replace("<non-verbose/>", "")
    line = " ".join(shown.split()) or "is not valid"
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 3] + "..."


def with_stack(n_bytes: int, work: Callable[[], Any]) -> Any:
    """Return the result of a function, run in a thread with a stack of `n_bytes`; its exception is raised here."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="dflash-compile", daemon=True)
    with _stack:
        before = threading.stack_size(n_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed.pop()
    return found.pop()
