"""Replay of recorded agent sessions: every prompt of a conversation, without and with the prefix cache."""

from dflash.evaluation.replay.report import Replay
from dflash.evaluation.replay.run import replay
from dflash.evaluation.replay.session_file import load_session
from dflash.evaluation.replay.synthetic import synthetic
from dflash.evaluation.replay.turn import Turn

__all__ = ["Replay", "Turn", "load_session", "replay", "synthetic"]
