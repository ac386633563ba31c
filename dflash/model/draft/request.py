"""What is wanted of a draft."""

from collections.abc import Sequence
from typing import NamedTuple

from dflash.kernels.sample import SampleParams
from dflash.model.draft.state import DraftState


class DraftRequest(NamedTuple):
    """Guesses for one session.

    Parameters
    ----------
    state : DraftState
        Has read the text but its last token.
    anchor : int
        The last token, at position ``state.length``.
    n_draft : int
        Positions after it, 1 to ``config.most``.
    params : SampleParams
        By which the session draws: its noise and temperature are in the scores.
    n_candidates : int
        Candidates of each position, 1 to 64. A DFlash 2 draft gives as many as its selector chooses from.
    draft_vocab : int, optional
        Which of the draft's `dflash.model.draft.vocabulary.draft_vocab` tokens do; None if it must guess from all.
    """

    state: DraftState
    anchor: int
    n_draft: int
    params: SampleParams
    n_candidates: int = 1
    draft_vocab: int | None = None


class DeviceDraftRequest(NamedTuple):
    """Guesses for one session that may stay on the device, as a tree.

    Parameters
    ----------
    state : DraftState
        Has read the text but its last token.
    params : SampleParams
        By which the session draws.
    positions, n_candidates, nodes : int
        A tree of so many guesses, of so many candidates at so many positions.
    draft_vocab : int, optional
        As of `DraftRequest`.
    """

    state: DraftState
    params: SampleParams
    positions: int
    n_candidates: int
    nodes: int
    draft_vocab: int | None = None


def shared_draft_vocab(requests: Sequence[DeviceDraftRequest]) -> int | None:
    """Which common tokens do for all of some wishes."""
    wanted = [request.draft_vocab for request in requests]
    return None if None in wanted else max(wanted, default=None)
