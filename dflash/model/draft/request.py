"""What is wanted of a draft."""

from collections.abc import Sequence
from typing import NamedTuple

from dflash.kernels.sample import Law
from dflash.model.draft.state import DraftState


class Ask(NamedTuple):
    """Guesses for one session.

    Parameters
    ----------
    state : DraftState
        Has read the text but its last token.
    anchor : int
        The last token, at position ``state.length``.
    n : int
        Positions after it, 1 to ``config.most``.
    law : Law
        By which the session draws: its noise and temperature are in the scores.
    width : int
        Candidates of each position, 1 to 64. A DFlash 2 draft gives as many as its selector chooses from.
    common : int, optional
        Which of the draft's `dflash.model.draft.vocabulary.common` tokens do; None if it must guess from all.
    """

    state: DraftState
    anchor: int
    n: int
    law: Law
    width: int = 1
    common: int | None = None


class Wish(NamedTuple):
    """Guesses for one session that may stay on the device, as a tree.

    Parameters
    ----------
    state : DraftState
        Has read the text but its last token.
    law : Law
        By which the session draws.
    positions, width, nodes : int
        A tree of so many guesses, of so many candidates at so many positions.
    common : int, optional
        As of `Ask`.
    """

    state: DraftState
    law: Law
    positions: int
    width: int
    nodes: int
    common: int | None = None


def common_of(wishes: Sequence[Wish]) -> int | None:
    """Which common tokens do for all of some wishes."""
    wanted = [wish.common for wish in wishes]
    return None if None in wanted else max(wanted, default=None)
