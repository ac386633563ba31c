"""State of several drafters for one session."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import (
    Drafter,
    DrafterSnapshot,
    DrafterState,
    Rows,
    can_start_at,
    end_step,
    reserve_draft,
    snapshot_draft,
)
from dflash.decode.drafting.shapes import Chain
from dflash.errors import DFlashError

if TYPE_CHECKING:
    from dflash.decode.drafting.shapes import Shape
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.host_arrays import HostArrays

_log = logging.getLogger(__name__)


class CompositeState:
    """States of several drafters. All observe; the first that has a draft provides it.

    by: class name of the drafter of the last draft; empty if there was none.
    limits: most draft tokens of each drafter; None is that of the shape.
    """

    by, source = "", 0

    def __init__(self, parts: list[DrafterState], limits: Sequence[int | None] = ()) -> None:
        self.parts, self.limits = parts, limits or (None,) * len(parts)

    @property
    def capture(self) -> tuple[int, ...]:
        """Target layers that any of the drafters needs."""
        return tuple(sorted({layer for part in self.parts for layer in part.capture}))

    def set_shape(self, shape: Shape | None) -> None:
        """Set the shape of the next drafts: chains for drafters with a limit; None leaves that of the others."""
        for part, limit in zip(self.parts, self.limits, strict=True):
            if own := Chain((shape or Chain()).wants(limit, limit)[0]) if limit else shape:
                set_shape(part, own)

    def propose(self, max_draft: int) -> Draft:
        """Return the first draft that is not empty."""
        found = (part.propose(min(max_draft, n or max_draft)) for part, n in zip(self.parts, self.limits, strict=True))
        return next((draft for draft in found if len(draft)), EMPTY)

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:
        """Pass the rows to each drafter."""
        for part in self.parts:
            part.observe(step, out, rows)

    def reserve(self, length: int) -> None:
        """Take the memory of each drafter."""
        for part in self.parts:
            reserve_draft(part, length)

    def snapshot(self) -> CompositeSnapshot:
        """Return the snapshots of all drafters."""
        with ExitStack() as stack:
            found: list[DrafterSnapshot | None] = []
            for part in self.parts:
                found.append(snapshot := snapshot_draft(part))
                if snapshot is not None:
                    stack.callback(snapshot.close)
            return CompositeSnapshot(found, stack.pop_all())

    def close(self) -> None:
        """Close all states, even if closing one raises."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.callback(part.close)


class CompositeSnapshot:
    """Snapshots of several drafters, closed together."""

    def __init__(self, parts: list[DrafterSnapshot | None], stack: ExitStack) -> None:
        self.parts, self._stack = parts, stack

    @property
    def n_bytes(self) -> int:
        """Bytes of all snapshots."""
        return sum(getattr(part, "n_bytes", 0) for part in self.parts)

    def host_arrays(self) -> HostArrays:
        """Copy the snapshots that can be saved to the host; names begin with the index of their drafter."""
        found: HostArrays = {}
        parts: list[Any] = [*self.parts]
        for i, part in enumerate(parts):
            if hasattr(part, "host_arrays"):
                found |= {f"{i}.{name}": array for name, array in part.host_arrays().items()}
        return found

    def close(self) -> None:
        """Close all snapshots."""
        self._stack.close()


def set_shape(drafter_state: DrafterState, shape: Shape) -> None:
    """Set the shape of a session's next drafts."""
    if isinstance(drafter_state, CompositeState):
        drafter_state.set_shape(shape)
    else:
        shaped: Any = drafter_state  # states without a shape ignore it
        shaped.shape = shape


def end_all(drafters: Sequence[Drafter], drafter_states: Sequence[CompositeState]) -> None:
    """End a step of all drafters; see `Drafter.end_step`."""
    for i, drafter in enumerate(drafters):
        end_step(drafter, [drafter_state.parts[i] for drafter_state in drafter_states])


def prepare_all(drafters: Sequence[Drafter], model: TargetModel, *, needs_all: bool = True) -> None:
    """Prepare all drafters, or those that the model has files for."""
    for drafter in drafters:
        try:
            drafter.prepare(model)
        except DFlashError as error:
            if needs_all:
                raise
            _log.info("%r is left out: %s", drafter, error)


def start_all(
    drafters: Sequence[Drafter], session: SessionView, model: TargetModel, snapshot: CompositeSnapshot | None
) -> list[DrafterState]:
    """Start all drafters. If one fails, close those that were started."""
    known = snapshot.parts if snapshot is not None else [None] * len(drafters)
    with ExitStack() as stack:
        parts: list[DrafterState] = []
        for drafter, part in zip(drafters, known, strict=True):
            parts.append(drafter.start(session, model, part))
            stack.callback(parts[-1].close)
        stack.pop_all()
    return parts


def can_start_all_at(
    drafters: Sequence[Drafter], model: TargetModel, n_prompt: int, length: int, snapshot: CompositeSnapshot | None
) -> bool:
    """Return True if all drafters can start after `length` prompt tokens; see `Drafter.can_start_at`."""
    known = snapshot.parts if snapshot is not None else [None] * len(drafters)
    return all(can_start_at(each, model, n_prompt, length, part) for each, part in zip(drafters, known, strict=True))


def snapshots_from_host(drafters: Sequence[Drafter], model: TargetModel, arrays: HostArrays) -> CompositeSnapshot:
    """Return the snapshots that `CompositeSnapshot.host_arrays` copied; drafters without one start without."""
    with ExitStack() as stack:
        found: list[Any] = []
        for i, drafter in enumerate(drafters):
            own = {name.removeprefix(f"{i}."): array for name, array in arrays.items() if name.startswith(f"{i}.")}
            found.append(drafter.snapshot_from_host(model, own) if own else None)
            if found[-1] is not None:
                stack.callback(found[-1].close)
        return CompositeSnapshot(found, stack.pop_all())
