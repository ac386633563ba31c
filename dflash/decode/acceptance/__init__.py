"""Acceptance that does not depend on the target's tokens, for measurements."""

from dflash.decode.acceptance.golden import GOLDEN, golden, parse
from dflash.decode.acceptance.synthetic import AcceptanceSchedule, SyntheticAcceptance

__all__ = ["GOLDEN", "AcceptanceSchedule", "SyntheticAcceptance", "golden", "parse"]
