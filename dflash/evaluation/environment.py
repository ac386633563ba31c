"""Versions, device and commit behind a measurement, to print beside it."""

import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.distribution import release
from dflash.json_types import JsonObject
from dflash.model.numerics import numerics_of

if TYPE_CHECKING:
    from dflash.lm import LM

PACKAGES = ("numpy", "numba", "llvmlite", "gguf", "tokenizers", "jinja2", "huggingface-hub", "llguidance")
GPU_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc")
"""Packages whose versions may change a result or its speed."""

VARIABLES = ("CUDA_VISIBLE_DEVICES", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables that do, beside those that begin with ``DFLASH_``."""

_ROOT = Path(__file__).parents[2]


class Environment(JsonObject):
    """Result of `environment`: a dict of JSON values, printed as lines of name and value."""

    def __repr__(self) -> str:
        lines = list(_lines(self))
        size = max((len(name) for name, _ in lines), default=0)
        return "\n".join(f"{name:<{size}}  {value}" for name, value in lines)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"


def environment(lm: "LM | None" = None, *, fingerprint: bool = False) -> Environment:
    """Describe what a measurement depends on: print it beside the numbers, or save it as JSON.

    Parameters
    ----------
    lm : LM, optional
        Model that was measured; adds its file, memory and device.
    fingerprint : bool
        Add the SHA-256 of the model's files; reads them whole.

    Returns
    -------
    Environment
        A dict of JSON values: ``dflash`` (version), ``commit`` (of a checkout; with ``+changes`` if it has some),
        ``python``, ``system``, ``cpu``, ``gpu`` (None without a usable one, and then ``no_gpu`` says why), ``packages``,
        ``variables`` and, with `lm`, ``model``. Printed it is a block of lines.

    Examples
    --------
    ::

        print(dflash.environment())
        json.dumps(dflash.environment(lm, fingerprint=True))
    """
    from dflash.kernels.gpu import device
    from dflash.model.describe import describe

    trouble = device.trouble()
    found = Environment(
        dflash=release(),
        commit=_commit(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=describe("cpu"),
        gpu=None if trouble else describe("cuda"),
        packages=dict(_versions()),
        variables={name: value for name, value in sorted(os.environ.items()) if _counts(name)},
    )
    if trouble:
        found["no_gpu"] = trouble
    if lm is not None:
        found["model"] = _model(lm, fingerprint=fingerprint)
    return found


def _model(lm: "LM", *, fingerprint: bool) -> JsonObject:
    about = lm.info()
    files = [Path(part) for part in about["model"]["files"]]
    found = {
        "files": [path.name for path in files],
        "bytes": sum(path.stat().st_size for path in files),
        "architecture": about["model"]["architecture"],
        "quantization": list(about["quantization"]),
        **asdict(numerics_of(lm.model)),
        "context": lm.model.config.context,
        "pending": lm.model.config.pending,
        "threads": lm.model.threads,
        "device": about["device"]["kind"],
        "prefix_cache": lm.prefix_cache is not None,
    }
    return {**found, "sha256": [sha256(path) for path in files]} if fingerprint else found


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    from hashlib import file_digest

    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _commit() -> str | None:
    """Return the commit of the checkout that the package is in; None if it is in none, or there is no git."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + "+changes" * bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", _ROOT, *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _versions() -> Iterator[tuple[str, str]]:
    for name in (*PACKAGES, *GPU_PACKAGES):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            if name not in GPU_PACKAGES:
                yield name, "not installed"


def _counts(name: str) -> bool:
    return name in VARIABLES or (name.startswith("DFLASH_") and "KEY" not in name)


def _lines(values: JsonObject, before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{before}{name} ")
        elif value is not None:
            shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{before}{name}", shown
