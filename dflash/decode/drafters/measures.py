"""Latencies of a model and its drafters, each measured once for all `Adaptive` drafters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dflash.decode.drafters.adaptive.controller import FULL, Controller
from dflash.decode.drafters.adaptive.draft_option import SIZES
from dflash.decode.drafters.adaptive.latency import DraftLatency, ForwardLatency, step_seconds
from dflash.decode.drafters.measuring import Parts, measured_extra, measured_forwards, measured_steps
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.model.attachments import Recent
from dflash.model.protocols.target import TargetModel

_KEY = "measures"
_CHOICES, _FORWARDS, _POINTS = 64, 16, 256
"""Most entries of each kind. Requests name any number of choices; there are few kinds of forwards and drafters."""


class Measures:
    """Measurements of one model, stored in its attachments.

    Attributes
    ----------
    choices : Recent
        For each `Adaptive`, the `Controller` with its statistics.
    points : Recent
        For each form of a drafter and shape, draft tokens and seconds of a step; see `measured_extra`.
    """

    def __init__(self) -> None:
        self.choices = Recent[Drafter, Controller](_CHOICES)
        self.points = Recent[Hashable, tuple[int, float] | None](_POINTS)
        self._forwards = Recent[tuple[int, ...], ForwardLatency](_FORWARDS)
        self._plain: float | None = None

    def forwards(self, model: TargetModel, capture: tuple[int, ...]) -> Parts[ForwardLatency]:
        """Return the latencies of forwards that capture some layers; measured at the first call."""
        found = self._forwards.recall(capture)
        if found is None:
            found = yield from measured_forwards(model, capture)
            self._forwards.keep(capture, found)
        return found

    def plain(self, model: TargetModel, forwards: ForwardLatency) -> Parts[float]:
        """Return the seconds of a plain step; measured at the first call."""
        if self._plain is None:
            steps = yield from measured_steps(model, Strategy())
            self._plain = min(map(step_seconds, steps), default=forwards.seconds(1))
        return self._plain


def measures_of(model: TargetModel) -> Measures:
    """Return the measurements of a model, empty if nothing was measured yet."""
    return model.attachments.setdefault(_KEY, Measures())


def measured_controller(strategies: Sequence[Strategy], model: TargetModel) -> Parts[Controller]:
    """Make a controller for a model, in short parts, and measure the latencies that are not known yet.

    Parameters
    ----------
    strategies : sequence of Strategy
        Drafters, prepared for the model, and their largest shapes.
    model : TargetModel
        The target.
    """
    measures, on_host = measures_of(model), model.device == "cpu"
    forwards = yield from measures.forwards(model, _captured_layers(model, [each.drafter for each in strategies]))
    controller = Controller(strategies, forwards, on_host=on_host)
    if not on_host:
        controller.overhead = DraftLatency([(0, (yield from measures.plain(model, forwards)))])
    for option in controller.options:
        if not option.instant:
            shapes = [Strategy(option.drafter, option.sized(n)) for n in _measured_sizes(option.most, on_host=on_host)]
            option.extra = yield from measured_extra(model, shapes, forwards, measures.points)
    return controller


def _measured_sizes(most: int, *, on_host: bool) -> Sequence[int]:
    """Return the draft sizes to measure for an option of at most `most` tokens.

    All options share these few sizes, so that each is measured once. On a GPU a size is captured at its first use.
    """
    sizes = SIZES if on_host else FULL
    largest = next((n for n in sizes if n >= most), sizes[-1])
    return sorted({1, largest}) if on_host else [n for n in sizes if n <= largest]


def _captured_layers(model: TargetModel, drafters: Sequence[Drafter]) -> tuple[int, ...]:
    """Return the target layers that draft models need. On a GPU, a forward that captures them is another graph."""
    drafts = [model.attachments.get(drafter) for drafter in drafters]
    return tuple(
        sorted({layer for draft in drafts for layer in getattr(getattr(draft, "config", None), "target_layer_ids", ())})
    )
