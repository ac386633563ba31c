"""Identity of the states of a loaded model: all that determines their bits, beside the tokens."""

from importlib.metadata import PackageNotFoundError, version

from dflash.decode.prefix_cache.disk.saved_state import LAYOUT
from dflash.model.describe import describe
from dflash.model.loading.target import Loaded


def identity_of(loaded: Loaded, *, exact: bool = True) -> str:
    """Return the identity of states: weights, KV type, device, alignment of chunks, and version of dflash.

    Parameters
    ----------
    loaded : Loaded
        Its file is open.
    exact : bool
        True if all states come from an exact prefix cache; others must not reach such a cache through files.
    """
    try:
        release = version("dflash")
    except PackageNotFoundError:
        release = "0"
    model, place = loaded.model, describe(loaded.model.device)
    parts = {
        "dflash": release,
        "layout": LAYOUT,
        "kv": model.pools.kv,
        "device": " ".join([place["kind"], place["processor"], *place.get("simd", [place.get("architecture", "")])]),
        "alignment": model.chunk_alignment,
        "exact": exact,
        "weights": loaded.file.fingerprint(),
    }
    if model.pools.layout:
        parts["split"] = model.pools.layout
    return ", ".join(f"{name} {value}" for name, value in parts.items())
