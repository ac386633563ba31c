"""Warnings about draft models that are wrong or damaged: these cost speed but raise no error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dflash.decode.drafting.shapes import Tree
from dflash.kernels.ragged import PENDING

if TYPE_CHECKING:
    from dflash.decode.drafting.drafter import Strategy
    from dflash.decode.view import SessionView
    from dflash.model.protocols.target import TargetModel

_log = logging.getLogger(__name__)

_PATIENCE = 64
"""Consecutive steps without an accepted draft token after which a warning is given."""

_KEY = "warnings"


class DraftDiagnostics:
    """Counts the accepted draft tokens of one session and warns if there are none.

    A warning is added to `Session.warnings` of every session that it concerns. It is logged, and listed by `warnings_of`,
    once for a model and a drafter.
    """

    def __init__(self, session: SessionView, model: TargetModel, name: str) -> None:
        self._session, self._model, self._name = session, model, name
        self._n_rejected, self._waiting, self._quiet = 0, False, False

    def count_draft(self, n: int) -> None:
        """Count a draft of `n` tokens where at least one was wanted."""
        self._waiting = n > 0
        if n == 0:
            self._warn("finds no token likely at all; its logits are NaN, its weights may be damaged")

    def count_accepted(self, n: int) -> None:
        """Count `n` accepted draft tokens of the last draft."""
        if not self._waiting:
            return
        self._waiting, self._n_rejected = False, 0 if n else self._n_rejected + 1
        if self._n_rejected == _PATIENCE:
            self._warn(f"had no draft token accepted in {_PATIENCE} steps in a row; was it made for this model?")

    def _warn(self, reason: str) -> None:
        if self._quiet:
            return
        self._quiet = True
        self._session.warnings.append(warn(self._model, f"{self._name} {reason}"))


def most_drafted(model: TargetModel, strategy: Strategy) -> int:
    """Return the most tokens of drafts, by the target's rows and the blocks of a draft model, which is loaded."""
    config = getattr(model.attachments.get(strategy.drafter), "config", None)
    block = PENDING if isinstance(strategy.shape, Tree) else getattr(config, "max_draft", PENDING)
    return min(block, model.config.pending - 1)


def warn(model: TargetModel, warning: str) -> str:
    """Log a warning and list it in `warnings_of`, once for a model; return it."""
    known = model.attachments.setdefault(_KEY, [])
    if warning not in known:
        known.append(warning)
        _log.warning("%s", warning)
    return warning


def warnings_of(model: TargetModel) -> list[str]:
    """Return the warnings about drafters of a model so far."""
    return list(model.attachments.get(_KEY, ()))
