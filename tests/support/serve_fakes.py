"""Fake engine with scripted output."""

from dflash.decode.scheduling.reread import RereadQueue
from dflash.decode.session import Step


class ScriptedEngine:
    """Gives every session the same texts, one a step, and an exception where the script has one.

    A function in the script is called, in a step without text. After the script the session ends with the reason `finish`.
    """

    rereads = RereadQueue(None, 1)

    def __init__(self, tokenizer, script, finish="stop"):
        self.tokenizer, self.script, self.finish = tokenizer, list(script), finish
        self.sessions, self.waiting = {}, 0

    @property
    def busy(self):
        return bool(self.sessions)

    @property
    def active(self):
        return len(self.sessions)

    def add_all(self, sessions):
        self.sessions.update(dict.fromkeys(sessions, 0))

    def step(self):
        return [(session, self._advance(session)) for session in list(self.sessions)]

    def close(self):
        self.sessions = {}

    def _advance(self, session):
        place = self.sessions[session]
        self.sessions[session] += 1
        item = self.script[place] if place < len(self.script) and not session.cancelled else None
        if isinstance(item, Exception):
            session.error = item
            return self._end(session, "error")
        if item is None:
            return self._end(session, "cancelled" if session.cancelled else self.finish)
        if callable(item):
            item()
            return Step([])
        ids = self.tokenizer.encode(item)
        return Step(ids) if session.observer(session, ids) is None else self._end(session, "stop")

    def _end(self, session, reason):
        del self.sessions[session]
        session.finish_reason = reason
        return Step([], finish=reason)
