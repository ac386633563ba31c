"""A drafter whose draft reads recorded features in place of some of the target's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, DrafterState, Rows, end_step, reserve_draft
from dflash.decode.step import Step
from dflash.decode.view import SessionView
from dflash.kernels.gpu import device
from dflash.model.batch import Forward
from dflash.model.protocols.target import TargetModel


@dataclass(frozen=True, eq=False)
class Swapped(Drafter["_SwappedState"]):
    """Drafts as another drafter does, from features of which some layers are those of a recording.

    features: float32 (T, D) for each swapped layer, at the positions of the only sequence; layer L of a target with L layers
        is the output of its last norm.
    """

    drafter: Drafter
    features: Mapping[int, NDArray[np.floating]]

    @property
    def parts(self) -> tuple[Drafter, ...]:  # type: ignore[override]  # the protocol has a class attribute
        """See `Drafter`."""
        return (self.drafter,)

    def start(self, session: SessionView, model: TargetModel, snapshot: object = None) -> "_SwappedState":  # noqa: ARG002
        """See `Drafter`."""
        return _SwappedState(self.drafter.start(session, model), self.features, session.n_prefilled)

    def propose(self, drafter_states: Sequence["_SwappedState"], max_drafts: Sequence[int]) -> list[Draft]:
        """See `Drafter`."""
        return self.drafter.propose([each.inner for each in drafter_states], max_drafts)

    def end_step(self, drafter_states: Sequence["_SwappedState"]) -> None:
        """See `Drafter`."""
        end_step(self.drafter, [each.inner for each in drafter_states])


class _SwappedState:
    """State of the other drafter; `n_seen` rows were observed."""

    def __init__(self, inner: DrafterState, features: Mapping[int, NDArray[np.floating]], n_seen: int) -> None:
        self.inner, self._features, self._n_seen = inner, features, n_seen
        self.capture = inner.capture

    def propose(self, max_draft: int) -> Draft:
        return self.inner.propose(max_draft)

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        at = slice(self._n_seen, self._n_seen + n)
        self._n_seen += n
        captured = dict(out.captured)
        for layer, values in self._features.items():
            if layer in captured:
                captured[layer] = _with_rows(captured[layer], rows, values[at])
            else:
                out = replace(out, hidden=_with_rows(out.hidden, rows, values[at]))
        self.inner.observe(step, replace(out, captured=captured), rows)

    def reserve(self, length: int) -> None:
        reserve_draft(self.inner, length)

    def snapshot(self) -> None:
        """Save nothing: swapped features are of one sequence."""

    def close(self) -> None:
        self.inner.close()


def _with_rows(array: Any, rows: Rows, values: NDArray[np.floating]) -> Any:
    """Return a copy of an array, of a GPU or not, with other values in some rows."""
    values = values.astype(np.float32)
    with device.holding(array):
        found = array.copy()
        found[rows] = values if isinstance(array, np.ndarray) else device.array(values)
    return found
