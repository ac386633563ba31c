"""Content of a saved state: a session's snapshot as arrays on the host."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.drafter import Drafter
from dflash.decode.prefix_cache.disk.state_file import read_file, write_file
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import DFlashError, FormatError, RequestError
from dflash.model.loading.hub import stamp
from dflash.model.loading.target import loaded_model
from dflash.model.protocols.target import TargetModel
from dflash.model.state.sequence_state import Snapshot

LAYOUT = 2
"""Version of names and meanings of the arrays; part of the identity of every file."""

_TARGET, _DRAFTER = "target.", "drafter."


@dataclass(frozen=True, eq=False)
class SavedState:
    """A snapshot of a session on the host.

    identity: all that determines the bits of a state, beside the tokens; see `identity_of`.
    n_prompt: number of tokens of the session's prompt; it may exceed the number of tokens in the state.
    drafter: identity of the drafter whose state was saved; empty if there is none.
    arrays: ``token_ids``, int32 (T,), and the arrays of target and drafter.
    """

    identity: str
    n_prompt: int
    drafter: str
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, snapshot: SessionSnapshot, identity: str, drafter: Drafter | None = None) -> Self:
        """Copy a snapshot with the state of `drafter`, or of the newest one that can be saved, to the host.

        Called in the thread that owns the model.
        """
        if not isinstance(snapshot.state, Snapshot):
            raise DFlashError(f"{type(snapshot.state).__name__}: states of this model can't be saved")
        arrays: dict[str, NDArray[Any]] = {"token_ids": snapshot.ids}
        arrays |= {_TARGET + name: array for name, array in snapshot.state.host_arrays().items()}
        found = newest_drafter(snapshot) if drafter is None else drafter
        drafter_state: Any = None if found is None else snapshot.of(found)
        if found is None or not hasattr(drafter_state, "host_arrays"):
            return cls(identity, snapshot.n_prompt, "", arrays)
        arrays |= {_DRAFTER + name: array for name, array in drafter_state.host_arrays().items()}
        return cls(identity, snapshot.n_prompt, identity_of_drafter(found), arrays)

    @classmethod
    def read(cls, path: Path, identity: str, max_bytes: int) -> Self:
        """Read and check a file."""
        metadata, arrays = read_file(path, max_bytes)
        ids, n_prompt = arrays.get("token_ids"), metadata.get("n_prompt", "")
        if metadata.get("identity") != identity:
            other = metadata.get("identity", "no dflash")
            raise RequestError(f"{path.name}: was saved with {other:.200}; this model has {identity:.200}")
        if ids is None or ids.dtype != np.int32 or ids.ndim != 1 or not len(ids) or not n_prompt.isdecimal():
            raise FormatError("is no saved state of dflash", path=path)
        return cls(identity, int(n_prompt), metadata.get("drafter", ""), arrays)

    def write(self, path: Path) -> int:
        """Write the file and return its bytes; see `write_file`."""
        metadata = {"identity": self.identity, "n_prompt": str(self.n_prompt), "drafter": self.drafter}
        return write_file(path, metadata, self.arrays)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Ids of the tokens in the state, int32 (T,)."""
        return self.arrays["token_ids"]

    def restore(self, model: TargetModel, drafter: Drafter) -> SessionSnapshot:
        """Return the snapshot, with the state of an equal drafter. Called in the thread that owns the model.

        drafter: prepared for the model. If its state was not saved or does not fit, it starts at the end of the prefix.
        """
        state = Snapshot.from_host(loaded_model(model).pools, self._part(_TARGET))
        try:
            if state.length != len(self.token_ids):
                raise FormatError(f"saved state: has read {state.length} tokens and lists {len(self.token_ids)}")
            drafter_state = None
            if self.drafter and self.drafter == identity_of_drafter(drafter):
                try:
                    drafter_state = drafter.snapshot_from_host(model, self._part(_DRAFTER))
                except FormatError:
                    drafter_state = None
        except BaseException:
            state.close()
            raise
        return SessionSnapshot.restored(self.token_ids, self.n_prompt, state, drafter, drafter_state)

    def _part(self, prefix: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


def newest_drafter(snapshot: SessionSnapshot) -> Drafter | None:
    """Return the last drafter of a snapshot whose state can be saved; None if there is none."""
    savable = [each for each, state in snapshot.drafter_states.items() if hasattr(state, "host_arrays")]
    return savable[-1] if savable else None


def identity_of_drafter(drafter: Drafter) -> str:
    """Return the settings of a drafter and its parts, and names, sizes and times of their files."""
    return " ".join([repr(drafter), *(repr(stamp(source)) for source in _sources(drafter))])


def _sources(drafter: Drafter) -> Iterator[str]:
    source = getattr(drafter, "source", None)
    if source is not None:
        yield source
    for part in getattr(drafter, "parts", ()):
        yield from _sources(part)
