"""What goes into the next forward."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dflash.decode.drafting.device_draft import DeferredDraft
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafter, Nothing
from dflash.decode.session import Session
from dflash.errors import DFlashError
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span

_ROOT = np.array([-1], np.int32)

Fail = Callable[[Session, Exception], None]


class BatchPart(NamedTuple):
    """One session's rows of a forward: `start` to `stop`, a chunk of its prompt or its last token and a draft."""

    session: Session
    span: Span
    start: int
    stop: int
    draft: Draft = EMPTY
    n_prefill: int = 0


def plan(model: Any, sessions: Sequence[Session], chunk: int, fail: Fail) -> list[BatchPart]:
    """Lay out a forward: every session that writes gets its rows, then prompts share `chunk` rows, the oldest first.

    Parameters
    ----------
    model : Model
        Its `rows` bound the forward, its `n_vocab` the guesses; prompts are cut at multiples of its `cut`.
    sessions : sequence of Session
        Admitted, the oldest first.
    chunk : int
        Most prompt tokens.
    fail : callable
        Told which sessions a drafter has failed, and how.

    Returns
    -------
    list of BatchPart
        Sessions that found no room have none.
    """
    writing = [session for session in sessions if session.n_prefilled >= session.n_prompt - 1]
    reading = [session for session in sessions if session.n_prefilled < session.n_prompt - 1]
    parts: list[BatchPart] = []
    start = 0
    for session, draft in _drafts(model, writing, model.max_rows - (chunk if reading else 0), fail):
        stop = start + 1 + len(draft)
        parts.append(BatchPart(session, _decode_span(session, draft), start, stop, draft))
        start = stop
    room = min(chunk, model.max_rows - start)
    for session in reading:
        n = _chunk(session, room, model.chunk_alignment)
        if n > 0:
            parts.append(BatchPart(session, _prompt_span(session, n), start, start + n, n_prefill=n))
            start, room = start + n, room - n
    return parts


def _chunk(session: Session, room: int, cut: int) -> int:
    """How many tokens of a prompt to read: all that are left, or as many as end at a multiple of `cut`."""
    left = session.n_prompt - 1 - session.n_prefilled
    return left if left <= room else max(0, room - (session.n_prefilled + room) % cut)


def capture_of(parts: Sequence[BatchPart]) -> tuple[int, ...]:
    """Layers that any of the drafters wants to see."""
    layers: set[int] = set()
    for part in parts:
        layers.update(part.session.drafter_state.capture)
    return tuple(sorted(layers))


def _decode_span(session: Session, draft: Draft) -> Span:
    last = session.token_ids[-1]
    if not len(draft):
        return Span(session.state, np.array([last], np.int32), _ROOT)
    if isinstance(draft, DeferredDraft):
        n = 1 + len(draft)
        return Span(session.state, np.full(n, last, np.int32), np.arange(-1, n - 1, dtype=np.int32), device_draft=draft)
    tokens = np.concatenate([[last], draft.tokens], dtype=np.int32)
    return Span(session.state, tokens, np.concatenate([_ROOT, draft.parents + 1], dtype=np.int32))


def _prompt_span(session: Session, n: int) -> Span:
    tokens = session.ids[session.n_prefilled : session.n_prefilled + n]
    return Span(session.state, tokens, np.arange(-1, n - 1, dtype=np.int32), prefill=True, logits=False)


def _drafts(model: Any, writing: list[Session], rows: int, fail: Fail) -> list[tuple[Session, Draft]]:
    """Ask every drafter once for all of its sessions, whatever shapes; what a session is forced to say is its draft."""
    groups: dict[Drafter, list[Session]] = {}
    for session in writing:
        if type(session.drafter) is not Nothing:
            groups.setdefault(session.drafter, []).append(session)
    forced = [session for session in writing if session.forced_ids]
    if not groups and not forced:
        return [(session, EMPTY) for session in writing]
    share = max(min(PENDING, rows // len(writing)) - 1, 0)
    drafts: dict[Session, Draft] = {}
    failed: set[Session] = set()

    def take(group: list[Session], propose: Callable[[list[int]], Sequence[Draft]]) -> None:
        rooms = [min(share, session.max_length - len(session.token_ids) - 1) for session in group]
        try:
            for session, draft, room in zip(group, propose(rooms), rooms, strict=True):
                drafts[session] = _checked(draft, room, model.n_vocab)
        except Exception as error:
            failed.update(group)
            for session in group:
                fail(session, error)

    for session in forced:
        take([session], lambda _, session=session: [Draft(session.forced_ids)])
    for drafter, group in groups.items():
        take(group, partial(drafter.propose, [session.drafter_state for session in group]))
    return [(session, drafts.get(session, EMPTY)) for session in writing if session not in failed]


def _checked(draft: Draft, room: int, n_vocab: int) -> Draft:
    draft = draft.cut(room)
    if isinstance(draft, DeferredDraft):
        return draft
    if len(draft) and not (draft.tokens.min() >= 0 and draft.tokens.max() < n_vocab):
        raise DFlashError(f"draft: ids are 0 to {n_vocab - 1}, got {draft.tokens.tolist()}")
    return draft
