"""Drafters and recoveries from outside the package: modules and files that an option names."""

import importlib.util
import sys
from pathlib import Path

import dflash.decode.drafters
import dflash.generation.recovery  # noqa: F401 - both give their names to the tables first
from dflash.decode.registry import DRAFTERS
from dflash.decode.registry.recoveries import RECOVERIES
from dflash.errors import DFlashError


def load_plugin(name: str) -> str:
    """Import a module, or a file that ends in ``.py``, whose classes register themselves; return the name."""
    _ = len(DRAFTERS), len(RECOVERIES)  # built-in names are taken first
    try:
        if name.endswith(".py"):
            _import_file(Path(name).resolve())
        else:
            importlib.import_module(name)
    except Exception as error:
        raise DFlashError(f"plugin {name!r:.200} can't be imported: {type(error).__name__}: {error}") from error
    return name


def _import_file(path: Path) -> None:
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return
    if known is not None:
        raise ImportError(f"a module {path.stem!r} is imported already; give the file another name")
    sys.path.append(str(path.parent))  # for modules beside it, as of a script
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "the name ends in .py"
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
