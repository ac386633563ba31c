"""Names of verifiers on the command line and in study files."""

from dflash.decode.verifiers.base import COUPLED, Verifier
from dflash.decode.verifiers.block import BlockVerification
from dflash.decode.verifiers.golden import parse_length
from dflash.decode.verifiers.rejection import RejectionSampling
from dflash.decode.verifiers.typical import Typical
from dflash.errors import RequestError

_NAMED: dict[str, Verifier] = {"coupled": COUPLED, "rejection": RejectionSampling(), "block": BlockVerification()}


def chosen(verifier: str | None, synthetic_acceptance: str | None) -> Verifier:
    """Return the verifier of two options, of which at most one may be given; `Coupled` without.

    Raises
    ------
    RequestError
        If both are given, or one is not valid.
    """
    if synthetic_acceptance is None:
        return COUPLED if verifier is None else parse(verifier)
    if verifier is not None:
        raise RequestError("verifier: synthetic acceptance is a verifier of its own; give one of the two")
    return parse_length(synthetic_acceptance)


def parse(text: str) -> Verifier:
    """Read ``coupled``, ``rejection``, ``block`` or ``typical[:EPSILON[:DELTA]]``.

    Raises
    ------
    RequestError
        If it is none of these, or a number is out of range.
    """
    if text in _NAMED:
        return _NAMED[text]
    word, *numbers = text.split(":")
    try:
        if word == "typical" and len(numbers) <= 2:
            return Typical(*map(float, numbers))
    except ValueError:
        pass
    raise RequestError(f"verifier: wanted coupled, rejection, block or typical[:EPSILON[:DELTA]], got {text!r:.80}")
