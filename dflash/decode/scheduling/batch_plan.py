"""The rows of the next forward: drafts of sessions that decode, and chunks of prompts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from dflash.decode.drafting.device_draft import DeferredDraft
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafter, DrafterState, Nothing
from dflash.decode.scheduling.prompt_scores import max_scored_rows
from dflash.decode.scheduling.saved_inside import copies_inside
from dflash.decode.session import Session
from dflash.decode.step import Step
from dflash.decode.verify import Accepted
from dflash.errors import DFlashError
from dflash.model.batch import Span
from dflash.model.protocols.target import TargetModel

Fail = Callable[[Session, Exception], None]
Limits = Callable[[Sequence[Session], int], Mapping[Session, int]]


class BatchPart(NamedTuple):
    """Rows `start` to `stop` of a forward: a chunk of one session's prompt, or its last token and a draft."""

    session: Session
    span: Span
    start: int
    stop: int
    draft: Draft = EMPTY
    n_prefill: int = 0

    def step(self, accepted: Accepted, shared: Step, verify: float) -> Step:
        """Return the step of a session that decodes, as far as it is known before the commit.

        Rows and times of `shared` are those of all sessions; `verify` is the session's own, in seconds.
        """
        return Step(
            tokens=accepted.tokens,
            drafted=accepted.drafted,
            accepted=accepted.n_accepted,
            batch=shared.batch,
            propose=shared.propose,
            forward=shared.forward,
            verify=verify,
            finish=accepted.finish,
            draft=self.draft if accepted.drafted else EMPTY,
            rows=accepted.rows,
            injected=accepted.injected,
        )


def plan(
    model: TargetModel,
    sessions: Sequence[Session],
    chunk: Callable[[int], int],
    fail: Fail,
    limits: Limits | None = None,
) -> list[BatchPart]:
    """Lay out a forward: every session that decodes gets its rows, then prompts share the tokens of a chunk.

    The oldest prompt gets at least half of the chunk, so that it makes progress; the rest goes to the prompts with the
    fewest unread tokens, so that a short prompt does not wait for long ones. Prompts whose tokens get log-probabilities
    come first: rows with logits lie together. They share `max_scored_rows`. Pieces of answers that are prefilled again come
    last, whole: `RereadShare` has limited them.

    model: its `max_rows` bounds the forward, ``config.pending`` the drafts, `n_vocab` their tokens; chunks end at multiples
        of its `chunk_alignment`.
    chunk: ``chunk(n)`` is the most prompt tokens in a forward with `n` sessions that decode.
    limits: ``limits(sessions, n)`` returns the most draft tokens of some of the sessions that decode, of which each has room
        for `n`; the drafter of a session with none is not asked.
    """
    decoding = [session for session in sessions if decodes(session)]
    prefilling = [session for session in sessions if not decodes(session)]
    parts: list[BatchPart] = []
    start = 0
    most = chunk(len(decoding)) if prefilling else 0
    for session, draft in _drafts(model, decoding, model.max_rows - most, fail, limits):
        stop = start + 1 + len(draft)
        assert session.state is not None, "the session runs"
        parts.append(BatchPart(session, Span.of(session.state, session.token_ids[-1], draft), start, stop, draft))
        start = stop
    scored = [session for session in prefilling if session.unscored]
    others = [session for session in prefilling if not session.unscored and not session.is_reread]
    again = [session for session in prefilling if session.is_reread]
    room = min(most, model.max_rows - start)
    n_again = min(room, sum(session.n_prompt - 1 - session.n_prefilled for session in again))
    room -= n_again
    copies_left, ends = model.max_state_copies, model.max_state_copies == 0
    shares = _chunks(scored, min(room, max_scored_rows(model)), model.chunk_alignment, ends=True) if scored else []
    shares += _chunks(others, room - sum(n for _, n in shares), model.chunk_alignment, ends=ends)
    shares += _chunks(again, n_again, model.chunk_alignment, ends=ends)
    for session, n in shares:
        n, copies = copies_inside(session, n, copies_left)
        copies_left -= len(copies)
        tokens = session.prompt_array[session.n_prefilled : session.n_prefilled + n]
        assert session.state is not None, "the session runs"
        span = Span.chain(session.state, tokens, prefill=True, logits=session.unscored)
        parts.append(BatchPart(session, replace(span, copies=copies), start, start + n, n_prefill=n))
        start += n
    return parts


def decodes(session: Session) -> bool:
    """Return True if a session's prompt is prefilled but for its last token."""
    return session.n_prefilled >= session.n_prompt - 1


def _chunks(sessions: Sequence[Session], room: int, alignment: int, *, ends: bool) -> list[tuple[Session, int]]:
    """Divide `room` tokens among prompts, the oldest first in `sessions`; `ends` as for `_chunk`."""
    shares: list[tuple[Session, int]] = []
    kept = _chunk(sessions[0], max(room // 2, min(room, alignment)), alignment, ends=ends) if sessions else 0
    for session in sorted(sessions, key=lambda session: (session.priority, session.n_prompt - session.n_prefilled)):
        kept = 0 if session is sessions[0] else kept
        if n := _chunk(session, room - kept, alignment, ends=ends):
            shares.append((session, n))
            room -= n
    return shares


def _chunk(session: Session, room: int, alignment: int, *, ends: bool) -> int:
    """Return the number of tokens to prefill: the rest of the prompt, or as many as end at a multiple of `alignment`."""
    saved = (length for length in session.snapshot_at if length > session.n_prefilled)
    end = next(saved, session.n_prompt - 1) if ends else session.n_prompt - 1
    left = end - session.n_prefilled
    return left if left <= room else max(0, room - (session.n_prefilled + room) % alignment)


def capture_of(parts: Sequence[BatchPart]) -> tuple[int, ...]:
    """Return the target layers that any of the drafters needs."""
    layers: set[int] = set()
    for drafter_state in drafter_states_of(part.session for part in parts):
        layers.update(drafter_state.capture)
    return tuple(sorted(layers))


def drafter_states_of(sessions: Iterable[Session]) -> list[DrafterState]:
    """Return the drafter states of running sessions."""
    return [state for session in sessions if (state := session.drafter_state) is not None]


def drafter_groups(sessions: Iterable[Session]) -> dict[Drafter, list[Session]]:
    """Return running sessions by drafter, without those that never draft."""
    groups: dict[Drafter, list[Session]] = {}
    for session in sessions:
        if session.drafter_state is not None and type(session.drafter) is not Nothing:
            groups.setdefault(session.drafter, []).append(session)
    return groups


def _drafts(
    model: TargetModel, decoding: list[Session], rows: int, fail: Fail, limits: Limits | None
) -> list[tuple[Session, Draft]]:
    """Ask every drafter once for all of its sessions. Forced tokens of a session are its draft; grammars trim the others."""
    groups: dict[Drafter, list[Session]] = {}
    alone: list[Session] = []
    share = max_draft(model, len(decoding), rows)
    limited = {} if limits is None else limits(decoding, share)
    for session in decoding:
        if type(session.drafter) is not Nothing and limited.get(session, 1):
            groups.setdefault(session.drafter, []).append(session)
        elif session.grammar is not None:
            alone.append(session)
    forced = [session for session in decoding if session.forced_ids]
    if not groups and not forced and not alone:
        return [(session, EMPTY) for session in decoding]
    drafts: dict[Session, Draft] = {}
    failed: set[Session] = set()

    def take(group: list[Session], propose: Callable[[list[int]], Sequence[Draft]]) -> None:
        rooms = [min(share, session.max_length - len(session.token_ids) - 1) for session in group]
        asked = [min(room, limited.get(session, room)) for session, room in zip(group, rooms, strict=True)]
        try:
            for session, draft, most, room in zip(group, propose(asked), asked, rooms, strict=True):
                draft = _checked(draft, room if session.forced_ids else most, model.n_vocab)
                if session.grammar is not None and not session.forced_ids:
                    draft = session.grammar.fit(draft, room)
                drafts[session] = draft
        except Exception as error:
            failed.update(group)
            for session in group:
                fail(session, error)

    for session in alone:
        take([session], _no_draft)
    for session in forced:
        take([session], partial(_forced, session))
    for drafter, group in groups.items():
        take(group, partial(drafter.propose, drafter_states_of(group)))
    return [(session, drafts.get(session, EMPTY)) for session in decoding if session not in failed]


def max_draft(model: TargetModel, n: int, rows: int) -> int:
    """Return the most draft tokens of each of `n` sessions that share `rows` rows of a forward."""
    return max(min(model.config.pending, rows // max(n, 1)) - 1, 0)


def _no_draft(_: list[int]) -> list[Draft]:
    return [EMPTY]


def _forced(session: Session, _: list[int]) -> list[Draft]:
    return [Draft(session.forced_ids)]


def _checked(draft: Draft, room: int, n_vocab: int) -> Draft:
    if not isinstance(draft, Draft):
        raise DFlashError(f"propose: must return Draft(tokens), got {draft!r:.60}")
    draft = draft.cut(room)
    if isinstance(draft, DeferredDraft):
        return draft
    if len(draft) and not (draft.tokens.min() >= 0 and draft.tokens.max() < n_vocab):
        raise DFlashError(f"draft: ids are 0 to {n_vocab - 1}, got {draft.tokens.tolist()}")
    return draft
