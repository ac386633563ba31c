"""A limit on the time of steps in which prompts delay sessions that decode."""

from collections.abc import Sequence

from dflash.decode.scheduling.batch_plan import BatchPart

_WEIGHT = 0.5
"""Weight of the latest step in the averages: two steps after a change of load, three quarters of it are known."""

_AIM = 0.8
"""Share of the limit to aim at: single steps take longer than the average, and the end of a prompt longer than its start."""

_LEAST = 16
"""Fewest prompt tokens in a step, if decoding alone takes longer than the limit; prompts must not starve."""


class StepLimit:
    """Chooses how many prompt tokens share a step with sessions that decode, so that their next token is not delayed.

    The time of a step without prompts and the time of a prompt token are averages of measured steps. A step takes at most
    twice as many tokens as the last measured one, since the times of few tokens say little about many. The limit changes
    when a prompt is read, never a bit of an output. The idea of short prompt chunks beside decoding is that of
    Sarathi-Serve (Agrawal et al. 2024, arXiv:2403.02310).

    Parameters
    ----------
    seconds : float
        Most seconds of such a step.
    alignment : int
        Prompt chunks end at multiples of this number of tokens; see `TargetModel.chunk_alignment`.
    """

    def __init__(self, seconds: float, alignment: int) -> None:
        self.seconds = seconds
        self._least = max(_LEAST, alignment)
        self._decode = self._per_token = 0.0
        self._n_measured = 0

    def tokens(self, chunk: int) -> int:
        """Return the most prompt tokens of a step with sessions that decode, at most `chunk`."""
        affordable = int((_AIM * self.seconds - self._decode) / self._per_token) if self._n_measured else 0
        return min(chunk, max(self._least, min(affordable, 2 * self._n_measured)))

    def observe(self, parts: Sequence[BatchPart], seconds: float) -> None:
        """Learn from a step that took `seconds`. Steps of prompts alone do not count: a GPU may still work on them."""
        n_prefill = sum(part.n_prefill for part in parts)
        if not n_prefill:
            self._decode = _average(self._decode, seconds)
        elif any(not part.n_prefill for part in parts):
            self._per_token = _average(self._per_token, max(seconds - self._decode, 1e-9) / n_prefill)
            self._n_measured = n_prefill


def _average(old: float, new: float) -> float:
    return (1 - _WEIGHT) * old + _WEIGHT * new if old else new
