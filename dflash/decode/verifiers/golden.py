"""Acceptance lengths that others have measured and that several systems are compared with."""

from typing import NamedTuple

from dflash.decode.verifiers.synthetic import SyntheticAcceptance
from dflash.errors import RequestError


class _Curve(NamedTuple):
    """Mean acceptance lengths of one model by the number of draft tokens.

    Parameters
    ----------
    lengths : dict of int to float
        By number of draft tokens of a step.
    source : str
        Weights that were measured, and where the numbers were published.
    """

    lengths: dict[int, float]
    source: str


_FILES = "SemiAnalysisAI/InferenceX, golden_al_distribution"
_CURVES = "SemiAnalysisAI/InferenceX, pull request 3304"

GOLDEN: dict[tuple[str, str, bool], _Curve] = {
    ("qwen3.8-27b", "mtp", False): _Curve({1: 1.90, 2: 2.68, 3: 3.28, 4: 3.79}, f"fp8 weights; {_CURVES}"),
    ("qwen3.8-27b", "mtp", True): _Curve({1: 1.73, 2: 2.21, 3: 2.52, 4: 2.72}, f"fp8 weights; {_CURVES}"),
    ("qwen3.5-397b-a17b", "mtp", True): _Curve({3: 3.39}, _FILES),
}
"""Curves by model, method and thinking. SPEED-Bench (arXiv 2604.09557), qualitative split, coding: 80 prompts, at most 4,096
output tokens. None was measured with a GGUF file."""


def golden(model: str, method: str, *, k: int, thinking: bool = False) -> SyntheticAcceptance:
    """Return the acceptance length that is published for a model, to measure speed with.

    Parameters
    ----------
    model : str
        As ``"qwen3.8-27b"``.
    method : str
        ``"mtp"``.
    k : int
        Draft tokens of a step.
    thinking : bool
        The model reasons before it answers.

    Raises
    ------
    RequestError
        If there is no such number; the message says which there are.
    """
    curve = GOLDEN.get((model, method, thinking))
    if curve is None or k not in curve.lengths:
        known = (f"{name} {how} k={n}{' thinking' * on}" for (name, how, on), curve in GOLDEN.items() for n in curve.lengths)
        wanted = f"{model} {method} k={k}{' thinking' * thinking}"
        raise RequestError(f"acceptance: no length was published for {wanted:.80}, only for {', '.join(known)}")
    return SyntheticAcceptance(curve.lengths[k], source=f"golden, {curve.source}")


def parse_length(text: str) -> SyntheticAcceptance:
    """Read ``2.52``, ``multinomial:2.52``, shares as ``0.9,0.7,0.4``, or ``golden:MODEL:METHOD:K[:thinking]``.

    Raises
    ------
    RequestError
        If it is none of these.
    """
    kind, _, rest = text.partition(":")
    parts = rest.split(":")
    if kind == "golden" and len(parts) in (3, 4) and parts[2].isdecimal() and parts[3:] in ([], ["thinking"]):
        return golden(parts[0], parts[1], k=int(parts[2][:9]), thinking=len(parts) == 4)
    method, _, numbers = text.rpartition(":")
    try:
        values = tuple(map(float, numbers.split(",")))
    except ValueError:
        wanted = "2.52, multinomial:2.52, 0.9,0.7,0.4 or golden:qwen3.8-27b:mtp:3:thinking"
        raise RequestError(f"acceptance: wanted {wanted}, got {text!r:.80}") from None
    return SyntheticAcceptance(values if len(values) > 1 else values[0], method or "match-expected")
