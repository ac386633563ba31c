"""Close reasoning that exceeds a number of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.recoveries.base import PASS, Inject, Verdict
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.recoveries.min_tokens import NoEnd
from dflash.decode.recoveries.reasoning import ReasoningTracker
from dflash.decode.registry.recoveries import MAX_TOKENS, Option, RequestField, RequestFields, register
from dflash.errors import RequestError
from dflash.generation.recovery.special_tokens import THINK

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView
    from dflash.generation.recovery.names import Language

CLOSING = "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
"""Last sentence of closed reasoning. Qwen3 was trained with these words (Qwen Team 2025, arXiv 2505.09388, section 4.4)."""

PATIENCE = 16
"""Tokens beyond the budget after which reasoning is closed inside a word too. Words of prose have fewer tokens."""

MAX_CLOSES = 4
"""Times that reasoning is closed in one output: a model may open it again after the close."""

_WORD_PARTS = "_'\u2019\ufffd"
"""Characters of words beside letters and digits; U+FFFD is a part of a character."""


def _from_request(fields: RequestFields) -> ThinkBudget | None:
    """Read vLLM's field ``thinking_token_budget``."""
    n = fields.integer("thinking_token_budget", -1, MAX_TOKENS, -1)
    return None if n < 0 else ThinkBudget(n)


@register("think", Option("N", "n", required=True), field=RequestField("thinking_token_budget", _from_request))
@dataclass(frozen=True)
class ThinkBudget:
    """Inject the end of reasoning after `n` reasoning tokens, at the next end of a word.

    The model then writes at least one token before an end token. Reasoning that the model closes itself is not changed.
    Acts at most `MAX_CLOSES` times in an output, at most `PATIENCE` tokens after the budget is used.

    Parameters
    ----------
    n : int
        Reasoning tokens of an output; 0 closes reasoning at once.
    text : str
        Injected before the token that closes reasoning.
    ids : tuple of int
        Tokens to inject: `text`, the close and an empty line. `build` sets them.
    """

    n: int
    text: str = CLOSING
    ids: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RequestError(f"thinking_token_budget: must be 0 or more, got {self.n}")

    def build(self, language: Language) -> ThinkBudget | None:
        """Return the recovery with the model's token ids; None if the model has no special tokens for reasoning.

        Raises
        ------
        RequestError
            If `text` contains a special token for reasoning.
        """
        tokenizer = language.tokenizer
        opens, closes = map(tokenizer.id_of, THINK)
        if opens is None or closes is None:
            return None
        ids = tokenizer.encode(self.text, special=False)
        if opens in ids or closes in ids:
            raise RequestError(f"text: must not contain {THINK[0]} or {THINK[1]}, got {self.text!r:.60}")
        return replace(self, ids=(*ids, closes, *tokenizer.encode("\n\n", special=False)))

    def start(self, session: RecoveryView) -> _ThinkBudgetState | None:
        """Return None if the model has no special tokens for reasoning."""
        think = session.special_tokens.think
        if think is None:
            return None
        if think[1] not in self.ids:
            raise RequestError("ThinkBudget: has no token ids; pass it to LM.generate, or ThinkBudget(...).build(language)")
        return _ThinkBudgetState(self, session)


class _ThinkBudgetState:
    """Outside reasoning, inside with budget left, or beyond the budget and waiting for the end of a word."""

    name, restarts = "ThinkBudget", False

    def __init__(self, budget: ThinkBudget, session: RecoveryView) -> None:
        self._budget, self._reasoning = budget, ReasoningTracker(session)
        self._no_end: NoEnd | None = None
        self._n_closes = 0

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        self._reasoning.catch_up(session)
        if self._no_end is not None:
            self._allow_end(self._no_end, session, accepted)
        for i, token in enumerate(accepted.tokens):
            before = accepted.tokens[i - 1] if i else session.token_ids[-1]
            if i >= accepted.injected and self._must_close(session, before, token):
                self._n_closes += 1
                ids = self._legal_ids(session, accepted.tokens[:i])
                if ids:
                    return self._close(session, i, ids)
                self._report(session, "skip", f"{self._reason}; skipped, since the grammar refuses it")
            self._reasoning.feed(token)
        return PASS

    def _must_close(self, session: RecoveryView, before: int, token: int) -> bool:
        """Return True if the budget is used, and a token is no end and, within `PATIENCE`, not the rest of a word."""
        n_beyond = self._reasoning.n_reasoning - self._budget.n
        if not self._reasoning.is_open or n_beyond < 0 or self._n_closes == MAX_CLOSES:
            return False
        if token in session.stop_ids or token in (session.special_tokens.think or ()):
            return False
        if n_beyond >= PATIENCE or session.detokenize is None:
            return True
        return not (_is_word(session.detokenize([before])[-1:]) and _is_word(session.detokenize([token])[:1]))

    def _legal_ids(self, session: RecoveryView, above: list[int]) -> tuple[int, ...]:
        """Return the tokens to inject after `above`: a grammar may refuse the empty line, or all of them."""
        ids, think, grammar = self._budget.ids, session.special_tokens.think, session.grammar
        if grammar is None or think is None or grammar.allows([*above, *ids]):
            return ids
        ids = ids[: ids.index(think[1]) + 1]
        return ids if grammar.allows([*above, *ids]) else ()

    def _close(self, session: RecoveryView, n: int, ids: tuple[int, ...]) -> Inject:
        if session.stop_ids:
            n_closed = session.n_tokens + n + len(ids)
            self._no_end = NoEnd(n_closed + 1, np.array(sorted(session.stop_ids)))
            session.sampler.add(self._no_end)
        return Inject(n, ids, self._reason)

    def _allow_end(self, no_end: NoEnd, session: RecoveryView, accepted: Accepted) -> None:
        """Remove the mask of end tokens once the position after the close has a token, or if the close was dropped."""
        if no_end.held_off:
            self._report(session, "mask", "an end was likeliest right after reasoning was closed")
            no_end.held_off.clear()
        is_dropped = not accepted.injected and not session.forced_ids
        if is_dropped or session.n_tokens + len(accepted.tokens) >= no_end.n:
            session.sampler.remove(no_end)
            self._no_end = None

    @property
    def _reason(self) -> str:
        return f"reasoning was closed after {self._reasoning.n_reasoning} tokens"

    def _report(self, session: RecoveryView, action: str, reason: str) -> None:
        step = len(session.steps) + len(session.held_steps)
        session.interventions.append(Intervention(step, self.name, action, reason))


def _is_word(character: str) -> bool:
    return character != "" and (character.isalnum() or character in _WORD_PARTS)
