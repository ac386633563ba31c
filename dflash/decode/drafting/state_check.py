"""Check of the state that a drafter returns for a session."""

from dflash.decode.drafting.drafter import Drafter, DrafterState
from dflash.errors import DFlashError

_MEMBERS = "capture", "observe", "close"
"""Members that every session needs; `snapshot` is called only for prefixes that are saved."""


def checked_state(drafter: Drafter, drafter_state: DrafterState) -> DrafterState:
    """Return the result of `Drafter.start`."""
    proposes = getattr(type(drafter), "propose", None)
    asked = ("propose",) if proposes is Drafter.propose else ()  # a drafter may propose for all sessions itself
    missing = [name for name in (*_MEMBERS, *asked) if not hasattr(drafter_state, name)]
    if missing:
        kind, got = type(drafter).__name__, type(drafter_state).__name__
        raise DFlashError(f"{kind}.start: must return a DrafterState, got {got} without {', '.join(missing)}")
    return drafter_state
