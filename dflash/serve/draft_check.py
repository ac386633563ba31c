"""Check of the server's draft model at start."""

from dflash.decode.drafting.drafter import Drafter
from dflash.errors import DFlashError, RequestError
from dflash.generation.engine_thread import EngineThread
from dflash.model.config import Config
from dflash.model.draft.files.open_draft import is_draft
from dflash.model.eagle.files import is_eagle
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.serve.strategy_choice import Defaults, named

_WORDS = {
    "dflash": {"dflash", "dspark", "ddtree"},
    "eagle3": {"eagle3", "eagle3-tree"},
    "mtp": {"mtp", "mtp-tree"},
    "draft-model": {"draft-model"},
}
"""Kind of draft file to the names of strategies that use it."""


def prepare_draft(engine_thread: EngineThread, defaults: Defaults) -> None:
    """Load the draft model of a server, so that an unusable one is an error at start.

    defaults: defaults of the server. Nothing is done without a draft model, or if the default strategy uses it.
    """
    if defaults.draft is None or _uses(defaults.strategy.drafter, defaults.draft):
        return
    kinds, words = _kinds(defaults.draft), defaults.allowed
    chosen = [kind for kind in kinds if words is None or _WORDS[kind].intersection(words)]
    if not chosen:
        takers = ", ".join(sorted(set().union(*(_WORDS[kind] for kind in kinds))))
        raise RequestError(f"--draft {defaults.draft}: only {takers} use it, and --allow-strategies names none of them")
    for kind in chosen:
        try:
            engine_thread.prepare(named(kind, defaults.draft, **defaults.settings))
        except DFlashError:
            if kind == chosen[-1]:
                raise
        else:
            return


def _uses(drafter: Drafter, draft: str) -> bool:
    parts = getattr(drafter, "parts", ())
    return getattr(drafter, "source", None) == draft or any(_uses(part, draft) for part in parts)


def _kinds(draft: str) -> list[str]:
    """Return the strategies that can use a file, by its content."""
    path = resolve(draft, folders=True)
    if is_draft(path):
        return ["eagle3" if is_eagle(path) else "dflash"]
    with GGUFFile.open(path) as file:
        if "token_embd.weight" not in file.tensors:
            return ["mtp"]
        config = Config.from_gguf(file.metadata, file.tensors)
    return ["mtp", "draft-model"] if config.n_mtp else ["draft-model"]
