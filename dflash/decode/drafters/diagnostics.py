"""Drafts that can't be right: a wrong or broken draft model costs speed and says nothing, so this does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash.decode.view import SessionView

_log = logging.getLogger(__name__)

_PATIENCE = 64
_KEY = "warnings"


class DraftDiagnostics:
    """Watches the guesses that a draft model makes for one session.

    A warning is logged once for a model and a drafter; `Session.warnings` of every session has it, and `warnings_of`.

    Parameters
    ----------
    session : Session
        That is guessed for.
    model : Model
        That it runs on.
    name : str
        Of the drafter.
    """

    def __init__(self, session: SessionView, model: Any, name: str) -> None:
        self._session, self._model, self._name = session, model, name
        self._in_vain, self._waiting, self._quiet = 0, False, False

    def guessed(self, n: int) -> None:
        """A step guesses `n` tokens, where at least one was wanted."""
        self._waiting = n > 0
        if n == 0:
            self._warn("finds no token likely at all; its logits are NaN, its weights may be damaged")

    def kept(self, n: int) -> None:
        """Of the step before, `n` guesses were right."""
        if not self._waiting:
            return
        self._waiting, self._in_vain = False, 0 if n else self._in_vain + 1
        if self._in_vain == _PATIENCE:
            self._warn(f"guessed wrong {_PATIENCE} times in a row; is it a draft of this model?")

    def _warn(self, what: str) -> None:
        if self._quiet:
            return
        self._quiet = True
        warning = f"{self._name} {what}"
        self._session.warnings.append(warning)
        known = self._model.attachments.setdefault(_KEY, [])
        if warning not in known:
            known.append(warning)
            _log.warning("%s", warning)


def warnings_of(model: Any) -> list[str]:
    """What was found wrong with drafts for a model so far."""
    return list(model.attachments.get(_KEY, ()))
