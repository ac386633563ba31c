"""Finished answers, prefilled again, so that the next turn of an agent begins after them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.scheduling.batch_plan import BatchPart
from dflash.decode.scheduling.reread_share import RereadShare
from dflash.decode.scheduling.starter import Starter
from dflash.decode.session import Session
from dflash.decode.verifiers.base import COUPLED
from dflash.errors import PoolExhausted

log = logging.getLogger(__name__)

_MAX_WAITING = 32
"""Answers that wait. For one more the oldest is dropped, first of those that are for an idle device only: its next turn has
probably come."""

DELAY = 0.1
"""Seconds from the end of a request to its first such prefill; on an idle device, from the end of the last request. A client
that sends its next request at once would wait for a piece of it; tools of agents take seconds."""

_PRIORITY = 1 << 62
"""Behind every request."""


@dataclass(eq=False)
class Answer:
    """A finished sequence, of which the state after the first `saved` tokens is in the prefix cache.

    token_ids: int32 (N,); prompt and answer up to the last state that can be saved, and one token more.
    goes_on: see `RereadShare`.
    """

    token_ids: NDArray[np.int32]
    n_prompt: int
    saved: int
    strategy: Strategy
    conversation: str | None
    cache_salt: str
    goes_on: bool
    ended: float

    def continued_by(self, session: Session, n: int | None = None) -> bool:
        """Return True if a session's prompt goes on after the first `n` tokens, by default the answer's prompt."""
        n = self.n_prompt if n is None else n
        return session.n_prompt > n and np.array_equal(session.prompt_array[:n], self.token_ids[:n])


class Reread(Session):
    """A piece of an answer as a prompt. Its only use is the snapshot at its end: nothing is decoded, no step is emitted.

    answer: its tokens up to `end` are prefilled; its drafter prefills them, too.
    """

    is_reread = True

    def __init__(self, answer: Answer, end: int) -> None:
        super().__init__(
            PromptIds(answer.token_ids[: end + 1]),
            strategy=replace(answer.strategy, recoveries=(), verifier=COUPLED),
            max_tokens=1,
            conversation=answer.conversation,
            cache_salt=answer.cache_salt,
            priority=_PRIORITY,
        )
        self.max_length, self.answer = self.n_prompt + 1, answer


class RereadQueue:
    """Answers to prefill again, the oldest first, as `RereadShare` allows it.

    On a GPU the bits of a state depend on whether its tokens were decoded or prefilled. So an exact next turn can't begin
    with the state at the end of the answer; it has to prefill the answer first. This is done here while the agent's tool
    runs, a piece in each step. Work is lost only on answers that no turn follows, or that the client returns changed.
    Answers whose prompts are saved no more are dropped.

    cache: where the states are saved; takes part if its `reread` is true and it is exact.
    alignment: see `TargetModel.chunk_alignment`. With 1, states at the ends of answers are exact as they are.
    """

    def __init__(self, cache: PrefixCache | None, alignment: int) -> None:
        self._cache = cache if cache is not None and cache.reread and cache.exact and alignment > 1 else None
        self._alignment, self._share = alignment, RereadShare(alignment)
        self._waiting: list[Answer] = []
        self._due, self._n_found = 0.0, 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first may start on an idle device; None if there is none."""
        return max(0.0, self._due - perf_counter()) if self._waiting else None

    @property
    def is_due(self) -> bool:
        """True if one may start on an idle device."""
        return self.seconds_left == 0.0

    def add(self, session: Session) -> None:
        """Queue the answer of a session that has ended, if it is long enough for a snapshot."""
        if session.is_reread:
            if session.error is not None:
                log.warning("an answer could not be prefilled again: %s", session.error)
            return
        now = perf_counter()
        self._due = now + DELAY
        usual = session.use_prefix_cache and session.prefix is None
        if self._cache is None or not usual or session.finish_reason not in ("stop", "length"):
            return
        end = (len(session.token_ids) - 1) // self._alignment * self._alignment
        saved = session.snapshot_at[-1] if session.snapshot_at else session.n_cached
        if end - saved < self._cache.min_gain:
            return
        n_found, self._n_found = self._n_found, self._cache.stats.reread_hits
        self._share.earn(self._n_found - n_found)
        goes_on = self._share.goes_on(session)
        if len(self._waiting) == _MAX_WAITING:
            self._waiting.remove(min(self._waiting, key=lambda each: (each.goes_on, each.ended)))
        token_ids = np.concatenate([session.prompt_array, np.array(session.output_ids, np.int32)])[: end + 1]
        common = session.strategy, session.conversation, session.cache_salt
        self._waiting.append(Answer(token_ids, session.n_prompt, saved, *common, goes_on, now))

    def put_back(self, reread: Reread) -> None:
        """Let a piece that was not prefilled start again."""
        answer = reread.answer
        answer.saved = reread.n_cached
        self._waiting = [answer, *(each for each in self._waiting if each is not answer)]

    def start(self, starter: Starter, active: list[Session], chunk: Callable[[int], int], *, waits: bool) -> None:
        """Start pieces of the first answers for the next step, beside the active sessions of requests.

        An answer is dropped if its prompt is saved no more, or if an idle device has no memory for it.

        chunk, waits: see `RereadShare.tokens`.
        """
        now, beside = perf_counter(), bool(active) or waits
        due = [each for each in self._waiting if each.goes_on and each.ended + DELAY <= now]
        if not beside:
            due = self._waiting[:] if self.is_due else []
        left = self._share.tokens(active, chunk, now, waits=waits) if due else 0
        for answer in due:
            end = min(len(answer.token_ids) - 1, answer.saved + left)
            if end - answer.saved < self._alignment or (beside and not starter.has_room(answer.saved, end, active)):
                return
            reread = Reread(answer, end)
            self._waiting.remove(answer)
            try:
                starter.start(reread, active)
            except PoolExhausted:
                continue
            except Exception as error:
                log.warning("an answer can't be prefilled again: %s", error)
                continue
            if answer.saved <= reread.n_prefilled < end:
                active.append(reread)
                left -= end - reread.n_prefilled
            else:
                reread.release()
            if answer.saved <= reread.n_prefilled and end < len(answer.token_ids) - 1:
                answer.saved = end
                self._waiting.insert(0, answer)

    def drop(self, session: Session) -> None:
        """Drop the answers that a session continues, since it prefills them itself."""
        for answer in [each for each in self._waiting if each.continued_by(session)]:
            self._waiting.remove(answer)
            self._share.earn(answer.goes_on and answer.continued_by(session, len(answer.token_ids) - 1))

    def clear(self) -> None:
        """Drop all."""
        self._waiting.clear()

    def observe(self, parts: Sequence[BatchPart], seconds: float) -> None:
        """Learn from a step that took `seconds`, and count its tokens that were prefilled again."""
        if self._cache is not None:
            self._cache.count_reread(*self._share.observe(parts, seconds, perf_counter()))
