"""Finished answers, prefilled again while the device is idle, so that the next turn of an agent begins after them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.scheduling.batch_plan import BatchPart
from dflash.decode.scheduling.starter import Starter
from dflash.decode.session import Session
from dflash.decode.verifiers.base import COUPLED
from dflash.errors import PoolExhausted

log = logging.getLogger(__name__)

_MAX_WAITING = 32
"""Answers that wait. The oldest is dropped for one more: its next turn has probably come."""

DELAY = 0.1
"""Seconds from the end of a request to the first such prefill. A client that sends its next request at once would wait for a
piece of it; tools of agents take seconds."""

_PRIORITY = 1 << 62
"""Behind every request."""


class Reread(Session):
    """A finished sequence as a prompt. Its only use is the snapshot at its end: nothing is decoded, and no step is emitted.

    token_ids: int32 (N,); tokens to prefill, and one more.
    session: the session that produced them; its drafter prefills them, too.
    answered: int32 (M,); prompt of the answer.
    """

    is_reread = True

    def __init__(self, token_ids: NDArray[np.int32], session: Session, answered: NDArray[np.int32], saved: int) -> None:
        super().__init__(
            PromptIds(token_ids),
            strategy=replace(session.strategy, recoveries=(), verifier=COUPLED),
            max_tokens=1,
            conversation=session.conversation,
            cache_salt=session.cache_salt,
            priority=_PRIORITY,
        )
        self.max_length, self.answered, self.saved = self.n_prompt + 1, answered, saved


class RereadQueue:
    """Answers to prefill again, the oldest first.

    On a GPU the bits of a state depend on whether its tokens were decoded or prefilled. So an exact next turn can't begin
    with the state at the end of the answer; it has to prefill the answer first. This is done here while the agent's tool
    runs and nothing else does: beside others, a piece would take longer than in the next turn, which prefills these tokens
    together with its own. A request that arrives ends it; what was prefilled is saved. So work is lost only on answers that
    no turn follows, or that the client returns changed. Answers whose prompts are saved no more are dropped.

    cache: where the states are saved; takes part if its `reread` is true and it is exact.
    alignment: see `TargetModel.chunk_alignment`. With 1, states at the ends of answers are exact as they are.
    """

    def __init__(self, cache: PrefixCache | None, alignment: int) -> None:
        self._cache = cache if cache is not None and cache.reread and cache.exact and alignment > 1 else None
        self._alignment = alignment
        self._waiting: deque[Reread] = deque(maxlen=_MAX_WAITING)
        self._due = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first may start; None if there is none."""
        return max(0.0, self._due - perf_counter()) if self._waiting else None

    @property
    def is_due(self) -> bool:
        """True if one may start on an idle device."""
        return self.seconds_left == 0.0

    def add(self, session: Session) -> None:
        """Queue the answer of a session that has ended, if it is long enough for a snapshot."""
        if not session.is_reread:
            self._due = perf_counter() + DELAY
        if session.is_reread and session.error is not None:
            log.warning("an answer could not be prefilled again: %s", session.error)
        usual = session.use_prefix_cache and session.prefix is None and not session.is_reread
        if self._cache is None or not usual or session.finish_reason not in ("stop", "length"):
            return
        end = (len(session.token_ids) - 1) // self._alignment * self._alignment
        saved = session.snapshot_at[-1] if session.snapshot_at else session.n_cached
        if end - saved >= self._cache.min_gain:
            token_ids = np.concatenate([session.prompt_array, np.array(session.output_ids, np.int32)])[: end + 1]
            self._waiting.append(Reread(token_ids, session, session.prompt_array, saved))

    def put_back(self, reread: Reread) -> None:
        """Queue an answer again of which only a part was prefilled."""
        self._waiting.appendleft(Reread(reread.prompt_array, reread, reread.answered, reread.saved))

    def start_first(self, starter: Starter, active: list[Session]) -> None:
        """Start the first answer as the only active session.

        It is dropped if there is no memory for it, or more of it would be prefilled than the answer.
        """
        if not self.is_due:
            return
        reread = self._waiting.popleft()
        try:
            starter.start(reread, active)
        except PoolExhausted:
            return
        except Exception as error:
            log.warning("an answer can't be prefilled again: %s", error)
        else:
            if reread.n_prefilled < reread.saved:
                reread.release()
            else:
                active.append(reread)

    def drop(self, session: Session) -> None:
        """Drop the answer that a session continues, since it prefills the answer itself."""
        for waiting in [each for each in self._waiting if _continues(session, each.answered)]:
            self._waiting.remove(waiting)

    def clear(self) -> None:
        """Drop all."""
        self._waiting.clear()

    def count(self, parts: Sequence[BatchPart], seconds: float) -> None:
        """Count the tokens of a step that were prefilled again, and its time."""
        if parts[0].session.is_reread and self._cache is not None:
            self._cache.count_reread(parts[0].n_prefill, seconds)


def _continues(session: Session, prompt: NDArray[np.int32]) -> bool:
    return session.n_prompt > len(prompt) and np.array_equal(session.prompt_array[: len(prompt)], prompt)
