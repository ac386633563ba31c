"""What was measured of a model and its drafters: each once, for all who choose by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash.decode.drafters.adaptive.controller import FULL, Controller
from dflash.decode.drafters.adaptive.draft_option import SIZES
from dflash.decode.drafters.adaptive.latency import DraftLatency, ForwardLatency, whole
from dflash.decode.drafters.measuring import Parts, measured_extra, measured_forwards, measured_steps
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.model.attachments import Recent

_KEY = "measures"
_CHOICES, _FORWARDS, _POINTS = 64, 16, 256
"""Entries that are kept of each kind. Requests name any number of choices; there are few forms of forwards and drafters."""


class Measures:
    """Measurements of one model, kept among its companions.

    Attributes
    ----------
    choices : Recent
        By `Adaptive`, the `Controller` that learns over all of its texts.
    points : Recent
        By form of a drafter and shape, guesses and seconds of a step: see `measured_extra`.
    """

    def __init__(self) -> None:
        self.choices, self.points = Recent(_CHOICES), Recent(_POINTS)
        self._forwards = Recent(_FORWARDS)
        self._plain: float | None = None

    def forwards(self, model: Any, capture: tuple[int, ...]) -> Parts[ForwardLatency]:
        """Return how long forwards take that capture some layers; measure that the first time."""
        found = self._forwards.recall(capture)
        if found is None:
            found = yield from measured_forwards(model, capture)
            self._forwards.keep(capture, found)
        return found

    def plain(self, model: Any, forwards: ForwardLatency) -> Parts[float]:
        """Return the seconds of a step without guesses; measure them the first time."""
        if self._plain is None:
            steps = yield from measured_steps(model, Strategy())
            self._plain = min(map(whole, steps), default=forwards.seconds(1))
        return self._plain


def measures_of(model: Any) -> Measures:
    """Return the measurements of a model; none if nothing was measured yet."""
    return model.attachments.setdefault(_KEY, Measures())


def measured_choice(strategies: Sequence[Strategy], model: Any) -> Parts[Controller]:
    """Make a choice for a model, in short parts, and measure what was not measured of this model before.

    Parameters
    ----------
    strategies : sequence of Strategy
        Drafters, prepared for the model, and the largest shapes that they may fill.
    model : Model
        That is guessed for.
    """
    measures, on_host = measures_of(model), model.device == "cpu"
    forwards = yield from measures.forwards(model, _taps(model, [each.drafter for each in strategies]))
    choice = Controller(strategies, forwards, on_host=on_host)
    if not on_host:
        choice.overhead = DraftLatency([(0, (yield from measures.plain(model, forwards)))])
    for option in choice.options:
        if not option.instant:
            shapes = [Strategy(option.drafter, option.sized(n)) for n in _measured_sizes(option.most, on_host=on_host)]
            option.extra = yield from measured_extra(model, shapes, forwards, measures.points)
    return choice


def _measured_sizes(most: int, *, on_host: bool) -> Sequence[int]:
    """Numbers of guesses to measure for an option of at most so many; on a GPU each size is captured when it is first met.

    All are of the same few, whatever a request names, so that each is measured once.
    """
    sizes = SIZES if on_host else FULL
    largest = next((n for n in sizes if n >= most), sizes[-1])
    return sorted({1, largest}) if on_host else [n for n in sizes if n <= largest]


def _taps(model: Any, drafters: Sequence[Drafter]) -> tuple[int, ...]:
    """Layers of the model that draft models look at: a forward that keeps them is another one on a GPU."""
    drafts = [model.attachments.get(drafter) for drafter in drafters]
    return tuple(
        sorted({layer for draft in drafts for layer in getattr(getattr(draft, "config", None), "target_layer_ids", ())})
    )
