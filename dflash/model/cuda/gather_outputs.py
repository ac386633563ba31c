"""Gather the output rows of several passes in the order of their spans."""

from collections.abc import Iterator, Sequence
from typing import Any

from dflash.kernels.gpu import device
from dflash.kernels.ragged import PENDING
from dflash.kernels.sample.cuda import DeviceSampler
from dflash.model.batch import Forward, Span, starts
from dflash.model.config import Config
from dflash.model.cuda.passes import Layers, StepPass


class Gather:
    """Output arrays of a forward that takes more than one pass, or that returns logits of a prefill.

    The arrays grow on demand; the next such forward overwrites them.

    decode: provides the LM head, which runs on at most 64 rows at a time.
    """

    def __init__(self, config: Config, decode: StepPass) -> None:
        self._config, self._decode = config, decode
        self._rows: dict[str | int, Any] = {}
        self._sampler: DeviceSampler | None = None

    def take(self, spans: Sequence[Span], group: Sequence[int], layers: Layers, capture: Sequence[int]) -> None:
        """Copy the results of the pass over the spans whose indices are in `group`."""
        rows, logit_rows = starts(spans)
        n, n_logits = rows[-1], logit_rows[-1]
        sources: dict[str | int, Any] = {
            "hidden": layers.space.hidden,
            **{layer: layers.captured[layer] for layer in capture},
        }
        at = 0
        for i, stop in _runs(group, spans):
            size = rows[stop] - rows[i]
            for name, source in sources.items():
                target = self._room(name, n, self._config.width)
                device.copy(target[rows[i] : rows[i] + size], source[at : at + size])
            if spans[i].logits:
                target = self._room("logits", n_logits, self._config.n_vocab)[logit_rows[i] : logit_rows[stop]]
                if spans[i].prefill:
                    self._take_logits(spans[i:stop], layers, at, target)
                else:
                    device.copy(target, self._decode.logits[at : at + size])
            at += size

    def forward(self, spans: Sequence[Span], capture: Sequence[int]) -> Forward:
        """Return the gathered results."""
        rows, logit_rows = starts(spans)
        n, n_logits = rows[-1], logit_rows[-1]
        logits = self._room("logits", max(n_logits, 1), self._config.n_vocab)
        if self._sampler is None or self._sampler.logits is not logits:
            self._sampler = DeviceSampler(logits)
        captured = {layer: self._rows[layer][:n] for layer in capture}
        return Forward(self._sampler.rows(n_logits), self._rows["hidden"][:n], captured, tuple(spans))

    def _take_logits(self, spans: Sequence[Span], layers: Layers, at: int, target: Any) -> None:
        """Compute the logits of prefill spans, whose rows begin at `at`, from the pass's hidden states."""
        first = 0
        for span in spans:
            n = len(span.tokens)
            for start in range(0, n, PENDING):
                size = min(PENDING, n - start)
                wanted = layers.space.wanted[at + start : at + start + size]
                device.copy(target[first : first + size], self._decode.project(wanted, size))
                first += size
            at += n

    def _room(self, name: str | int, n: int, width: int) -> Any:
        array = self._rows.get(name)
        if array is None or len(array) < n:
            # at least twice the size: what CuPy keeps of outgrown arrays is never large enough for the next one
            n = max(n, 2 * len(self._rows.pop(name, ())))
            array = None
            array = self._rows[name] = device.empty(n, width)
        return array


def _runs(group: Sequence[int], spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield first and end of each run of spans that follow each other, all with logits or none."""
    first = last = group[0]
    for i in group[1:]:
        if i != last + 1 or spans[i].logits != spans[first].logits:
            yield first, last + 1
            first = i
        last = i
    yield first, last + 1
