"""How many prompt tokens share a step with sessions that decode."""

from collections.abc import Sequence

import numpy as np

from dflash.decode.scheduling.batch_plan import BatchPart
from dflash.decode.scheduling.step_costs import Floats, Ints

_EFFICIENCY, _GPU_EFFICIENCY = 0.95, 0.98
"""Rate of prompts beside sessions that decode, as a share of their rate alone. On a GPU the limit is a gap that hardly
anyone notices, and fewer steps with prompts delay fewer tokens: 8 simulated streams have 3 % more than with 95 %."""

_AIM = 0.9
"""Share of the limit to aim at: single steps take longer than the average, and the end of a prompt longer than its start."""

_LEAST = 16
"""Fewest prompt tokens in a step, if decoding alone takes longer than the limit; prompts must not starve."""

_GROWTH = 4
"""Most prompt tokens of a step over those of any measured one."""

_KEPT = 0.7
"""Weight of the steps before, for each new one: after three steps under another load, two thirds of it are known."""

_NEAR = 0.8
"""Share of the affordable tokens from which a measured step tells their rate."""

_CHANGE = 1.5
"""Factor between the time of a step and what was expected of it beyond which earlier steps say nothing about later ones."""


class PromptShare:
    """Chooses how many prompt tokens a step holds in which other sessions decode.

    As few as keep prompts at 95 % of their rate alone, or 98 % on a GPU, so that the next tokens of the others come soon,
    and no more than the limit of the step's time allows; as many as that until such a step was measured. A step costs what
    decoding costs and what its prompt tokens cost, which is learned from measured steps by powers of two of their number,
    as the cost of a token differs: a GPU unpacks the weights for many. What a step changes of one of them, it changes half
    as much of the others. A step takes at most four times as many tokens as any one before, since the times of few tokens
    say little about many. It changes when a prompt is read, never a bit of an output. Short prompt chunks beside decoding
    are the idea of Sarathi-Serve (Agrawal et al. 2024, arXiv:2403.02310).

    seconds: most seconds of such a step.
    alignment: prompt chunks end at multiples of this number of tokens; see `TargetModel.chunk_alignment`.
    """

    def __init__(self, seconds: float, alignment: int, *, on_gpu: bool = False) -> None:
        self.seconds, self._efficiency = seconds, _GPU_EFFICIENCY if on_gpu else _EFFICIENCY
        self._least = max(_LEAST, alignment)
        self._decode: dict[int, float] = {}  # seconds of steps without prompts, by the bits of the number of sessions
        self._prompts: dict[int, tuple[float, float]] = {}  # tokens and their seconds, by the bits of the number of tokens
        self._most, self._is_device_free = 0, True

    def tokens(self, chunk: int, n_decoding: int) -> int:
        """Return the most prompt tokens of a step in which `n_decoding` sessions decode, at most `chunk`."""
        if not n_decoding:
            return chunk
        sizes = np.arange(self._least, max(self._least, min(chunk, _GROWTH * self._most)) + 1)
        before, prompts = self._decode_seconds(n_decoding), self._prompt_seconds(sizes)
        n = max(int(np.searchsorted(np.maximum.accumulate(before + prompts), _AIM * self.seconds, "right")), 1)
        known = np.array([tokens for tokens, _ in self._prompts.values()])
        if before and len(known) and known.max() > _NEAR * sizes[n - 1]:
            wanted = self._efficiency * (known / self._prompt_seconds(known)).max()
            n = min(n, 1 + int(np.argmax(np.append(sizes / (before + prompts) >= wanted, True))))
        return min(chunk, int(sizes[n - 1]))

    def learn_decode(self, n: int, seconds: float) -> None:
        """Learn from the time of a step in which `n` sessions decode, without prompts."""
        self._decode[n.bit_length()] = _KEPT * self._decode.get(n.bit_length(), seconds) + (1 - _KEPT) * seconds

    def observe(self, parts: Sequence[BatchPart], seconds: float) -> None:
        """Learn from a step that took `seconds`.

        Steps of prompts alone do not count, nor do those after them: a GPU may still work on them.
        """
        n_prefill, n_decoding = sum(part.n_prefill for part in parts), sum(not part.n_prefill for part in parts)
        was_free, self._is_device_free = self._is_device_free, n_decoding > 0
        if was_free and n_decoding and n_prefill:
            self._learn_prompts(n_prefill, max(seconds - self._decode_seconds(n_decoding), 1e-9))
        elif was_free and n_decoding:
            self.learn_decode(n_decoding, seconds)

    def _learn_prompts(self, n: int, seconds: float) -> None:
        self._most, bits = max(self._most, n), n.bit_length()
        expected = float(self._prompt_seconds(np.array([n]))[0])
        if not seconds / _CHANGE < expected < seconds * _CHANGE:
            self._prompts = {bits: (n, seconds)}
            return
        tokens, own = self._prompts.get(bits, (n, seconds))
        drift = (seconds / expected) ** (0.5 * (1 - _KEPT))
        self._prompts = {other: (size, each * drift) for other, (size, each) in self._prompts.items()}
        self._prompts[bits] = _KEPT * tokens + (1 - _KEPT) * n, _KEPT * own + (1 - _KEPT) * seconds

    def _decode_seconds(self, n: int) -> float:
        """Return the time of a step in which `n` sessions decode: that of the nearest number that was measured."""
        if not self._decode:
            return 0.0
        return self._decode[min(self._decode, key=lambda bits: abs(bits - n.bit_length()))]

    def _prompt_seconds(self, sizes: Ints | Floats) -> Floats:
        """Return the seconds of numbers of prompt tokens, in proportion beyond the measured ones."""
        if not self._prompts:
            return np.zeros(len(sizes))
        tokens, seconds = zip(*sorted(self._prompts.values()), strict=True)
        return np.interp(sizes, tokens, seconds) * np.maximum(1.0, sizes / tokens[-1])
