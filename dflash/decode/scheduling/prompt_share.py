"""How many prompt tokens share a step with sessions that decode."""

from collections.abc import Sequence

from dflash.decode.scheduling.batch_plan import BatchPart

_EFFICIENCY = 0.95
"""Rate of prompts beside sessions that decode, as a share of their rate alone."""

_AIM = 0.9
"""Share of the limit to aim at: single steps take longer than the average, and the end of a prompt longer than its start."""

_MANY = 64
"""Sessions beyond which the limit grows, by a sixth for as many more: more prompt tokens then share the fixed costs of a
step, where each session waits for many others anyway."""

_LEAST = 16
"""Fewest prompt tokens in a step, if decoding alone takes longer than the limit; prompts must not starve."""

_FULL = 2048
"""Prompt tokens of a step, beyond which their rate hardly rises."""

_GROWTH = 4
"""Most prompt tokens of a step over those of any measured one."""

_KEPT = 0.7
"""Weight of the steps before, for each new one: after three steps under another load, two thirds of it are known.

A step with fewer prompt tokens than it might have had counts less: ends of prompts say little about whole chunks."""


class PromptShare:
    """Chooses how many prompt tokens a step holds in which other sessions decode.

    As few as keep prompts at 95 % of their rate alone, so that the next tokens of the others come soon, and no more than the
    limit of the step's time allows; until steps of two lengths are known, as many as that. A step costs what decoding costs,
    something for prompts at all (a GPU unpacks the weights) and something for each prompt token; all three are learned from
    measured steps. A step takes at most four times as many tokens as any one before, since the times of few tokens say
    little about many. It changes when a prompt is read, never a bit of an output. Short prompt chunks beside decoding are
    the idea of Sarathi-Serve (Agrawal et al. 2024, arXiv:2403.02310).

    seconds: most seconds of such a step, up to 64 sessions; a sixth more for each further 64.
    alignment: prompt chunks end at multiples of this number of tokens; see `TargetModel.chunk_alignment`.
    """

    def __init__(self, seconds: float, alignment: int) -> None:
        self.seconds = seconds
        self._least = max(_LEAST, alignment)
        self._decode: dict[int, float] = {}  # seconds of steps without prompts, by the bits of the number of sessions
        self._most, self._allowed, self._is_device_free = 0, 1, True
        self._fixed: float | None = None
        self._n = self._y = self._nn = self._ny = self._weight = 0.0  # decaying sums over steps with prompts

    def tokens(self, chunk: int, n_decoding: int) -> int:
        """Return the most prompt tokens of a step in which `n_decoding` sessions decode, at most `chunk`."""
        if not n_decoding:
            return chunk
        self._allowed = min(chunk, self._wanted(chunk, n_decoding) if self._most else self._least)
        return self._allowed

    def _wanted(self, chunk: int, n_decoding: int) -> int:
        fixed, each = self._fixed or 0.0, self._each()
        before = self._decode_seconds(n_decoding) + fixed
        limit = self.seconds * (1 + max(0, n_decoding - _MANY) / (6 * _MANY))
        affordable = (_AIM * limit - before) / each
        full = min(chunk, _FULL)
        rate = _EFFICIENCY * full / (fixed + full * each)
        wanted = rate * before / (1 - rate * each) if before and self._fixed is not None else chunk
        return max(self._least, int(min(wanted, affordable, _GROWTH * self._most)))

    def observe(self, parts: Sequence[BatchPart], seconds: float) -> None:
        """Learn from a step that took `seconds`.

        Steps of prompts alone do not count, nor do those after them: a GPU may still work on them.
        """
        n_prefill, n_decoding = sum(part.n_prefill for part in parts), sum(not part.n_prefill for part in parts)
        was_free, self._is_device_free = self._is_device_free, n_decoding > 0
        if not was_free or not n_decoding:
            return
        if not n_prefill:
            bits = n_decoding.bit_length()
            self._decode[bits] = _KEPT * self._decode.get(bits, seconds) + (1 - _KEPT) * seconds
        else:
            more = max(seconds - self._decode_seconds(n_decoding), 1e-9)
            weight = min(n_prefill / self._allowed, 1.0)
            new = (weight * each for each in (n_prefill, more, n_prefill**2, n_prefill * more, 1.0))
            kept = self._n, self._y, self._nn, self._ny, self._weight
            self._n, self._y, self._nn, self._ny, self._weight = (
                _KEPT**weight * a + b for a, b in zip(kept, new, strict=True)
            )
            self._most = max(self._most, n_prefill)
            self._learn_fixed()

    def _decode_seconds(self, n: int) -> float:
        """Return the time of a step in which `n` sessions decode: that of the nearest number that was measured."""
        if not self._decode:
            return 0.0
        return self._decode[min(self._decode, key=lambda bits: abs(bits - n.bit_length()))]

    def _learn_fixed(self) -> None:
        """Set the cost of prompts at all to that of a line through the measured steps, if these differ in length."""
        n, y = self._n / self._weight, self._y / self._weight
        spread = self._nn / self._weight - n * n
        if spread > (0.1 * n) ** 2:
            each = (self._ny / self._weight - n * y) / spread
            self._fixed = min(max(y - each * n, 0.0), 0.9 * y)

    def _each(self) -> float:
        """Return the seconds of each prompt token."""
        return max(self._y - (self._fixed or 0.0) * self._weight, 0.1 * self._y) / self._n
