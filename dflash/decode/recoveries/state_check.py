"""Checks of what recoveries return: one of a user's own may be wrong."""

from dflash.decode.recoveries.base import Cut, Inject, RecoveryState, Restart
from dflash.errors import DFlashError

_MEMBERS = "name", "restarts", "check_step"


def checked_state(recovery: object, recovery_state: RecoveryState) -> RecoveryState:
    """Return a result of `Recovery.start` that is not None."""
    missing = [name for name in _MEMBERS if not hasattr(recovery_state, name)]
    if missing:
        kind, got = type(recovery).__name__, type(recovery_state).__name__
        raise DFlashError(f"{kind}.start: must return a RecoveryState or None, got {got} without {', '.join(missing)}")
    return recovery_state


def checked_action(recovery_state: RecoveryState, verdict: object) -> Cut | Inject | Restart:
    """Return a verdict that is no `Signal`; raises DFlashError if it is no verdict either."""
    if not isinstance(verdict, Cut | Inject | Restart):
        raise DFlashError(
            f"{recovery_state.name}.check_step: must return PASS, HOLD, DONE, Cut, Inject or Restart, got {verdict!r:.60}"
        )
    return verdict
