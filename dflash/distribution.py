"""Name of the distribution on PyPI, its version, and what to install for an optional part."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash.errors import DFlashError

NAME = "dflash-gguf"
"""PyPI's ``dflash`` is the package of Z Lab, which trains the draft models; it has the same import name."""


def install(extra: str) -> str:
    """Return the command that installs an extra of ``pyproject.toml``."""
    return f"pip install '{NAME}[{extra}]'"


@contextmanager
def needed(purpose: str, extra: str, error: type[DFlashError] = DFlashError) -> Iterator[None]:
    """Turn the failure of an import into an error that names what to install.

    purpose: what needs the package; the message begins with it.
    extra: extra of ``pyproject.toml`` that holds the package.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "dflash":
            raise
        package = missing.name.partition(".")[0]
        raise error(f"{purpose} needs {package}: {install(extra)}") from missing
    except ImportError as broken:
        raise error(f"{purpose} can't import {broken.name or 'a package'} ({broken}): {install(extra)}") from broken


def mixture() -> str | None:
    """Return what is wrong if Z Lab's package, or another one called dflash, was installed into the folder of this one."""
    folder = Path(__file__).parent
    if hasattr(sys.modules["dflash"], "load") and not any(folder.parent.glob("dflash-*.dist-info")):
        return None
    return (
        f"{folder} holds files of {NAME} and of another package that is imported as dflash, as Z Lab's; "
        f"pip uninstall dflash {NAME}, then install one of them"
    )


def release() -> str:
    """Return the version of dflash, ``"0"`` if it runs from a folder that was not installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms

    try:
        return version(NAME)
    except PackageNotFoundError:
        return "0"
