"""Open a tool call where an agent announces an action and ends without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING
from weakref import ref

from dflash.decode.output_part import OutputPart
from dflash.decode.recoveries.base import PASS, Inject, Verdict
from dflash.decode.recoveries.reasoning import ReasoningTracker
from dflash.decode.registry.recoveries import Option, register
from dflash.errors import RequestError
from dflash.generation.recovery.announcements import PHRASES, Phrases
from dflash.generation.recovery.tool_call_prefix import opening

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView
    from dflash.generation.recovery.names import Language
    from dflash.model.text.tokenizer import Tokenizer

Ids = tuple[int, ...]


@register("stall", Option("TOOL", "tool", str), variable="DFLASH_STALL_TOOL_PREFIX")
@dataclass(frozen=True, slots=True)
class Stall:
    """Inject the start of a tool call where the output announces a call and ends. Builds a `ToolStall` for the model in use.

    Parameters
    ----------
    tool : str
        Tool to call if the request does not determine one; if empty, the model chooses.
    phrases : Phrases
        Phrases that make an announcement.
    """

    tool: str = ""
    phrases: Phrases = PHRASES

    def build(self, language: Language) -> ToolStall | None:
        """Return the recovery for a request; None if it has no tools or the template can't render calls."""
        if language.template is None:
            return None
        tokenizer, tools = language.tokenizer, language.tools
        opened = opening(tokenizer, language.template, tools, language.tool_choice, default=self.tool or None)
        if opened is None:
            return None
        ends = _ends(ref(tokenizer), self.phrases.colons)
        return ToolStall(opened.call, ends.suffixes, self.phrases.announce, opened.lead, ends.spaced)


@dataclass(frozen=True, repr=False)
class ToolStall:
    """Inject the start of a tool call if the output announces an action and ends without any tool call.

    Parameters
    ----------
    prefix_ids : tuple of int
        Start of a tool call.
    action_suffixes : tuple of tuple of int
        Possible last tokens of an announcement before white space: the tokens of a colon.
    announces : callable, optional
        ``announces(text)`` returns True if the text of the last `tail` tokens announces an action; other outputs may end in
        a colon. If None, every output does. ``recover="stall"`` uses `dflash.generation.recovery.announcements`, for several
        languages.
    lead_ids : tuple of int
        Tokens injected before the tool call, unless the output ends in white space.
    spaced : frozenset of int
        Tokens that end with a line break.
    tail : int
        Number of last output tokens for `announces`.
    """

    prefix_ids: Ids
    action_suffixes: tuple[Ids, ...]
    announces: Callable[[str], bool] | None = None
    lead_ids: Ids = ()
    spaced: frozenset[int] = frozenset()
    tail: int = 24

    def __post_init__(self) -> None:
        if not self.prefix_ids:
            raise RequestError("prefix_ids: must hold the start of a tool call")
        if not self.action_suffixes or not all(self.action_suffixes):
            raise RequestError("action_suffixes: must hold the last tokens of announcements")

    def start(self, session: RecoveryView) -> _ToolStallState:
        """Return the state; it acts at the end of the session only."""
        if self.announces is not None and session.detokenize is None:
            raise RequestError("ToolStall: announces needs the text of the session; give the session detokenize")
        return _ToolStallState(self, session)

    def __repr__(self) -> str:
        return f"ToolStall(<{len(self.prefix_ids)} ids>)"


class _ToolStallState:
    name, restarts = "ToolStall", False

    def __init__(self, stall: ToolStall, session: RecoveryView) -> None:
        self._stall, self._parts = stall, ReasoningTracker(session)

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        self._parts.catch_up(session)
        if accepted.finish != "stop" or accepted.tokens[-1] not in session.eos:
            return PASS
        n, stall = len(accepted.tokens) - 1, self._stall
        for token in accepted.tokens[:n]:
            self._parts.feed(token)
        text = session.output_ids + accepted.tokens[:n]
        if not self._is_announcement(session, text):
            return PASS
        spaced = text[-1] in session.special_tokens.silent or text[-1] in stall.spaced
        tokens = stall.prefix_ids if spaced else stall.lead_ids + stall.prefix_ids
        # the output contains a tool call now, so it cannot stall again
        session.recovery_states.remove(self)
        return Inject(n, tokens, f"it announced an action and ended after {len(text)} tokens: a tool call was opened")

    def _is_announcement(self, session: RecoveryView, text: list[int]) -> bool:
        stall, special_tokens = self._stall, session.special_tokens
        if self._parts.has_call or self._parts.part is not OutputPart.CONTENT:
            return False
        end = len(text)
        while end and text[end - 1] in special_tokens.silent:
            end -= 1
        visible = text[:end]
        if not any(visible[-len(suffix) :] == list(suffix) for suffix in stall.action_suffixes):
            return False
        if stall.announces is None:
            return True
        assert session.detokenize is not None, "a stall is built for a tokenizer"
        return stall.announces(session.detokenize(visible[-stall.tail :]))


@dataclass(frozen=True, slots=True)
class Ends:
    """Token ids that an announcement ends in, and those of them that end in a line break."""

    suffixes: tuple[Ids, ...]
    spaced: frozenset[int]


@lru_cache(maxsize=8)
def _ends(tokenizer: ref[Tokenizer], colons: tuple[str, ...]) -> Ends:
    """Search the vocabulary for tokens that end in a colon, cached per tokenizer. A colon may take several tokens."""
    known = tokenizer()
    assert known is not None
    ends = {}
    for token in range(known.n_tokens):
        text = known.token_bytes(token).decode("utf-8", "replace")
        if text.rstrip(" \r\n*_").endswith(colons) and not known.is_special(token):
            ends[token] = text
    pieces = (tuple(known.encode(colon, special=False)) for colon in colons)
    suffixes = ((token,) for token in ends), (ids for ids in pieces if len(ids) > 1)
    return Ends(tuple(chain(*suffixes)), frozenset(token for token, text in ends.items() if text.endswith("\n")))
