"""Identity of the states of a loaded model: all that determines their bits, beside the tokens."""

import functools
import hashlib
from dataclasses import asdict
from pathlib import Path

from dflash.decode.prefix_cache.disk.saved_state import LAYOUT
from dflash.distribution import release
from dflash.model.describe import describe
from dflash.model.loading.target import Loaded
from dflash.model.numerics import numerics_of

_PACKAGE = Path(__file__).parents[3]


@functools.cache
def sources_hash(package: Path = _PACKAGE) -> str:
    """Return a hash of the kernels and models in a folder of dflash: two checkouts of one version may compute other bits."""
    digest = hashlib.sha256()
    for path in sorted(file for part in ("kernels", "model") for file in (package / part).rglob("*.*")):
        if path.suffix in {".py", ".cu", ".cuh"}:
            digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def identity_of(loaded: Loaded, *, exact: bool = True) -> str:
    """Return the identity of states: all that their bits depend on.

    That is weights, number types, device, compiler, alignment of chunks, version and sources of dflash.

    The compiler's version counts since functions such as `expf` come with it. Machine code does not: NVRTC makes other code
    now and then, but no other bits (`dflash.kernels.gpu.cubin.OPTIONS`).

    exact: True if all states come from an exact prefix cache; others must not reach such a cache through files.
    """
    model, place = loaded.model, describe(loaded.model.device)
    # what chooses among kernels and their shapes
    chooses = place["simd"] if place["kind"] == "cpu" else [place[name] for name in ("architecture", "target", "processors")]
    parts = {
        "dflash": release(),
        "sources": sources_hash(),
        "layout": LAYOUT,
        **asdict(numerics_of(model)),
        "device": " ".join([place["kind"], place["processor"], *map(str, chooses)]),
        "compiler": place["compiler"],
        "alignment": model.chunk_alignment,
        "exact": exact,
        "weights": loaded.file.fingerprint(),
    }
    if model.pools.layout:
        parts["split"] = model.pools.layout
    return ", ".join(f"{name} {value}" for name, value in parts.items())
