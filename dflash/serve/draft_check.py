"""Check the draft model that a command line names, before a request wants it."""

from typing import Any

from dflash.errors import DFlashError, RequestError
from dflash.generation.engine_thread import Worker
from dflash.model.config import Config
from dflash.model.draft.files import is_draft
from dflash.model.gguf.file import GGUFFile
from dflash.model.hub import resolve
from dflash.serve.strategy_choice import Defaults, named

_WORDS = {
    "dflash": {"dflash", "dspark", "ddtree"},
    "mtp": {"mtp", "mtp-tree"},
    "draft-model": {"draft-model"},
}
"""For each strategy that guesses with a file of its own kind, the words by which requests ask for that kind."""


def prepare_draft(worker: Worker, defaults: Defaults) -> None:
    """Load the draft of a server, so that one that can't be used is told at the start.

    Parameters
    ----------
    worker : Worker
        Runs the model.
    defaults : Defaults
        Of the server. Nothing is done if there is no draft, or its own strategy guesses with that.

    Raises
    ------
    DFlashError
        If the draft is missing, damaged or of another model, or no strategy that requests may choose guesses with its kind.
    """
    if defaults.draft is None or _guesses_with(defaults.strategy.drafter, defaults.draft):
        return
    kinds, words = _kinds(defaults.draft), defaults.allowed
    chosen = [kind for kind in kinds if words is None or _WORDS[kind].intersection(words)]
    if not chosen:
        takers = ", ".join(sorted(set().union(*(_WORDS[kind] for kind in kinds))))
        raise RequestError(
            f"--draft {defaults.draft}: only {takers} guess with it, and --allow-strategies names none of them"
        )
    for kind in chosen:
        try:
            worker.prepare(named(kind, defaults.draft, **defaults.settings))
        except DFlashError:
            if kind == chosen[-1]:
                raise
        else:
            return


def _guesses_with(drafter: Any, draft: str) -> bool:
    parts = getattr(drafter, "parts", ())
    return getattr(drafter, "source", None) == draft or any(_guesses_with(part, draft) for part in parts)


def _kinds(draft: str) -> list[str]:
    """Strategies that may guess with a file, by what it holds."""
    path = resolve(draft, folders=True)
    if is_draft(path):
        return ["dflash"]
    with GGUFFile.open(path) as file:
        if "token_embd.weight" not in file.tensors:
            return ["mtp"]
        config = Config.from_gguf(file.metadata, file.tensors)
    return ["mtp", "draft-model"] if config.n_mtp else ["draft-model"]
