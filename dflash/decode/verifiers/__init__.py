"""Verifiers: which draft tokens a step accepts, and which token follows them."""

from dflash.decode.verifiers.base import COUPLED, Coupled, Verifier
from dflash.decode.verifiers.block import BlockVerification
from dflash.decode.verifiers.golden import GOLDEN, golden, parse_length
from dflash.decode.verifiers.names import chosen, parse
from dflash.decode.verifiers.rejection import RejectionSampling
from dflash.decode.verifiers.synthetic import AcceptanceSchedule, SyntheticAcceptance
from dflash.decode.verifiers.typical import Typical

__all__ = [
    "COUPLED",
    "GOLDEN",
    "AcceptanceSchedule",
    "BlockVerification",
    "Coupled",
    "RejectionSampling",
    "SyntheticAcceptance",
    "Typical",
    "Verifier",
    "chosen",
    "golden",
    "parse",
    "parse_length",
]
