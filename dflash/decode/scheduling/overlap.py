"""The next step, begun while the tokens that it needs are still being drawn: a GPU need not wait for the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode.drafting.device_draft import can_defer
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, LaunchDraft, NextStep, planned_next
from dflash.decode.scheduling.batch_plan import BatchPart, capture_of
from dflash.kernels.ragged import PENDING
from dflash.model.draft.request import DeviceDraftRequest

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward

_ROOT = (-1,)


class OverlappedStep:
    """A forward over one token more of each session, as if the token had been picked and kept.

    What the drafters want to see of the step before is shown to them first: this forward takes its place.

    Parameters
    ----------
    model : Model
        That runs it.
    parts : list of BatchPart
        Of the step whose tokens it reads.
    out : Forward
        Of that step.
    """

    def __init__(self, model: Any, parts: list[BatchPart], out: Forward) -> None:
        self._model, self._parts = model, parts
        for part in parts:
            part.session.drafter_state.observe(out, [part.start])
        self.out: Forward = model.forward_overlapped([part.span for part in parts], capture=capture_of(parts))

    def accept(self, session: Session) -> None:
        """Count its row as read, now that the token before it is text."""
        session.state.mark_read(_ROOT, prefill=False)

    def take(self, active: Sequence[Session]) -> list[BatchPart]:
        """Those of its rows whose sessions go on; none if anything was done to the model or to a state meanwhile.

        Parameters
        ----------
        active : sequence of Session
        """
        going = [part for part in self._parts if part.session in active]
        if self._model.latest is self.out and all(part.session.state.pending == _ROOT for part in going):
            return going
        for part in going:
            part.session.state.commit([])
        return []


def launch_next(model: Any, parts: list[BatchPart], active: Sequence[Session], out: Forward) -> OverlappedStep | None:
    """Begin what is foreseen of the next step: its forward if nobody guesses, else guesses, those of each draft together.

    Parameters
    ----------
    model : Model
        Whose last forward read `parts`, and whose draws of them are launched.
    parts : list of BatchPart
    active : sequence of Session
        All that want something of the next forward.
    out : Forward
        The last one.

    Returns
    -------
    OverlappedStep or None
        None if it is no forward that was begun: a session guesses, reads its prompt, has rules that must see its text,
        recoveries that may change it or a recorder, tells log-probabilities or is at its end. The drafter finds what
        was guessed ahead when it is asked.
    """
    if not model.can_overlap or len(parts) != len(active) or len(parts) > PENDING or not all(map(_may_go_on, parts)):
        return None
    found = _planned_next(parts)
    if all(one is NO_DRAFT for one in found) and all(_is_plain(part, row) for row, part in enumerate(parts)):
        return OverlappedStep(model, parts, out)
    requests: dict[Any, dict[int, DeviceDraftRequest]] = {}
    for i, one in enumerate(found):
        if isinstance(one, LaunchDraft):
            requests.setdefault(one.drafter, {})[i] = one.request
    for guesser, of_parts in requests.items():
        guesser.follow(list(of_parts.values()), list(of_parts))
    return None


def _planned_next(parts: Sequence[BatchPart]) -> list[NextStep]:
    """What the drafters say, each asked once for all of its sessions."""
    groups: dict[Drafter, list[int]] = {}
    for i, part in enumerate(parts):
        groups.setdefault(part.session.drafter, []).append(i)
    found: list[NextStep] = [None] * len(parts)
    for drafter, group in groups.items():
        told = planned_next(drafter, [parts[i].session.drafter_state for i in group], [parts[i].draft for i in group])
        for i, one in zip(group, told, strict=True):
            found[i] = one
    return found


def _may_go_on(part: BatchPart) -> bool:
    session = part.session
    return part.n_prefill == 0 and len(session.history) + 1 < session.max_length and can_defer(session)


def _is_plain(part: BatchPart, row: int) -> bool:
    return (part.start, part.stop) == (row, row + 1) and part.session.recorder is None
