"""``/v1/strategies``: the strategies and recoveries that requests may choose."""

import inspect
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash.decode import registry
from dflash.decode.registry import DRAFTERS, recoveries
from dflash.json_types import JsonObject
from dflash.serve.strategy_choice import Defaults


def catalog_endpoint(defaults: Defaults) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for a server with these defaults."""

    async def catalog(_: Request) -> Response:
        return JSONResponse(catalog_of(defaults))

    return catalog


def catalog_of(defaults: Defaults) -> JsonObject:
    """Describe what requests may choose.

    Returns: ``strategy`` and ``recover``: defaults of the server. ``strategies`` and ``recoveries``: for each the name
        ``id``, ``forms`` (ways to write it, such as ``mtp[:DEPTH]``) and ``description`` (one sentence). ``needs_parts`` is
        true for strategies that are never written without others in brackets. ``value`` is the label of what may follow the
        colon of a recovery. Strategies that need a draft model or an MTP layer are left out if there is none.
    """
    default = defaults.recover if isinstance(defaults.recover, str) else recoveries.from_environment()
    return {
        "object": "list",
        "strategy": registry.name(defaults.strategy),
        "recover": default,
        "strategies": [
            {
                "id": entry.word,
                "forms": entry.forms,
                "description": entry.about or _sentence(entry.kind),
                "needs_parts": entry.brackets == "always",
            }
            for entry in DRAFTERS.values()
            if (defaults.allowed is None or entry.word in defaults.allowed)
            and (defaults.draft is not None or (entry.needs_draft is None and entry.word not in defaults.without_files))
        ],
        "recoveries": [
            {
                "id": entry.word,
                "forms": entry.forms,
                "description": _sentence(entry.kind),
                "value": entry.option.label if entry.option else None,
            }
            for entry in recoveries.entries()
        ],
    }


def _sentence(kind: type) -> str:
    """Return the first sentence of a class's docstring, without marks of code."""
    paragraph = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    return paragraph.replace("\n", " ").replace("`", "").partition(". ")[0].removesuffix(".") + "."
