"""The next forward, launched while the tokens that it reads are still being drawn: a GPU need not wait for the host."""

from collections.abc import Sequence
from typing import Any

from dflash.decode.deferred import DeferredDraft, may_wait
from dflash.decode.drafter import Nothing
from dflash.decode.plan import Part
from dflash.decode.session import Session
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Forward

_ROOT = (-1,)


class Ahead:
    """A forward over one token more of each session, as if the token had been picked and kept.

    Parameters
    ----------
    model : Model
        That runs it.
    parts : list of Part
        Of the step whose tokens it reads.
    """

    def __init__(self, model: Any, parts: list[Part]) -> None:
        self._model, self._parts = model, parts
        self.out: Forward = model.forward_ahead([part.span for part in parts])

    def adopt(self, session: Session) -> None:
        """Count its row as read, now that the token before it is text."""
        session.state.advanced(_ROOT, whole=False)

    def take(self, active: Sequence[Session]) -> list[Part]:
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


def look_ahead(model: Any, parts: list[Part], active: Sequence[Session]) -> Ahead | None:
    """Launch the next forward, if it is certain but for its tokens; where guesses are still on the device, the next guesses.

    Parameters
    ----------
    model : Model
        Whose last forward read `parts`, and whose draws of them are launched.
    parts : list of Part
    active : sequence of Session
        All that want something of the next forward.

    Returns
    -------
    Ahead or None
        None if a session is not plain: it guesses, reads its prompt, has rules that must see its text,
        recoveries that may change it or a recorder, tells log-probabilities or is at its end. The drafter finds what
        was guessed ahead when it is asked.
    """
    if not model.looks_ahead or len(parts) != len(active) or len(parts) > PENDING:
        return None
    if all(_is_deferred(part) for part in parts):
        guesses = parts[0].draft.guesses
        if guesses is not None:
            guesses.follow()
        return None
    return Ahead(model, parts) if all(_is_plain(part, row) for row, part in enumerate(parts)) else None


def _is_deferred(part: Part) -> bool:
    session = part.session
    goes_on = len(session.history) + 1 < session.limit
    return isinstance(part.draft, DeferredDraft) and goes_on and may_wait(session)


def _is_plain(part: Part, row: int) -> bool:
    session = part.session
    picker = session.picker
    return (
        (part.start, part.stop, part.n_prefill) == (row, row + 1, 0)
        and type(session.drafter) is Nothing
        and not session.watches
        and not session.forced
        and not picker.rules
        and picker.law.n_top is None
        and session.recorder is None
        and len(session.history) + 1 < session.limit
    )
