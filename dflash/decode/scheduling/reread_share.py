"""How many tokens of finished answers a step prefills again, and of which answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash.decode.scheduling.batch_plan import BatchPart, decodes
from dflash.decode.session import Session
from dflash.model.attachments import Recent

_IDLE = 512
"""Most tokens of a step that holds nothing else: 71 ms for a 27B on an H200, which a new request waits."""

_BESIDE = 256
"""Most tokens of a step in which sequences decode and no prompt is prefilled: 36 ms there. 64 take 26 ms, 512 take 63."""

_JOINED = 8
"""Divisor of the tokens of a step that prefills prompts."""

_OWN_TIME = 0.1
"""Most of the time that steps without prompts take in which others decode beside answers."""

_CREDIT = 16.0
"""Answers that are prefilled beside others, though no next turn ever held one: 16 steps of 26 to 36 ms."""

_EARNED = 2.0
"""Credit of a next turn that holds the answer: at least half of them must."""

_TRIED = 1 / 32
"""Credit of any other answer for which it is due: so the rule learns that clients have changed."""

_MAX_NAMES = 1024
"""Names of conversations that are remembered."""


class RereadShare:
    """The rule by which answers are prefilled again.

    On an idle device all are, since that costs nobody anything. Beside other requests an answer of n tokens saves the next
    turn n tokens and costs others time. So it must be likely that this turn comes and holds the answer unchanged. It is for
    *conversations*: answers to a prompt that continued a whole earlier one, answers with a tool call, and the first answer
    under a name that a client gave to the conversation. Others wait for an idle device. Each takes one of 16 credits, and a
    next turn that holds its answer earns two: where clients drop reasoning, or names mean nothing, this ends soon.

    Where a step prefills prompts anyway, up to an eighth of its tokens are those of answers. They cost there what they would
    cost in the next turn, and others wait an eighth longer at most. A step of its own costs more (26 ms for 64 tokens of a
    27B on an H200, of which 6 are theirs), and every sequence that decodes waits for it. So it is made only while no prompt
    is prefilled, has at most 256 tokens, and all such steps take a tenth of the time at most. The limit of a step's time
    holds for both. While a request waits to start there is neither: its time to the first token is the queue's. Nothing is
    held from one step to the next: what a step has read is saved, so a request that arrives finds it, and waits for one step
    at most.

    alignment: pieces end at multiples of this number of tokens; see `TargetModel.chunk_alignment`.
    """

    def __init__(self, alignment: int) -> None:
        self._alignment = alignment
        self._names = Recent[str, None](_MAX_NAMES)
        self._own_from, self._credit = 0.0, _CREDIT

    def goes_on(self, session: Session) -> bool:
        """Return True if an answer is to be prefilled beside others; takes its credit. Called once for each answer."""
        name, call = session.conversation, session.special_tokens.call
        is_first = name is not None and name not in self._names
        if name is not None:
            self._names.keep(name, None)
        if not (session.continues or is_first or (call is not None and call[0] in session.output_ids)):
            return False
        goes_on = self._credit >= 1.0
        self._credit += -1.0 if goes_on else _TRIED
        return goes_on

    def earn(self, n: int) -> None:
        """Note that `n` next turns held the answers before them."""
        self._credit = min(self._credit + _EARNED * n, _CREDIT)

    def tokens(self, active: Sequence[Session], chunk: Callable[[int], int], now: float, *, waits: bool) -> int:
        """Return the most tokens of answers in the next step, a multiple of the alignment.

        active: sessions of requests.
        chunk: ``chunk(n)`` is the most prompt tokens of a step in which `n` sessions decode.
        waits: true if a request waits to start.
        """
        n_decoding = sum(map(decodes, active))
        is_own = n_decoding == len(active)
        if waits or (active and is_own and now < self._own_from):
            return 0
        most = chunk(n_decoding)
        if active:
            most = min(most, _BESIDE) if is_own else most // _JOINED
        return min(most, _IDLE) // self._alignment * self._alignment

    def observe(self, parts: Sequence[BatchPart], seconds: float, now: float) -> tuple[int, float]:
        """Learn from a step that took `seconds`; return its tokens of answers, and their seconds by the share of rows."""
        again = [part for part in parts if part.session.is_reread]
        if not again:
            return 0, 0.0
        n_again = sum(part.n_prefill for part in again)
        own = seconds * n_again / sum(part.stop - part.start for part in parts)
        if len(again) < len(parts) and not any(part.n_prefill for part in parts if not part.session.is_reread):
            self._own_from = max(self._own_from, now) + own * (1 / _OWN_TIME - 1)
        return n_again, own
