"""Studies as TOML files."""

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from dflash.cli.plugins import load_plugin
from dflash.decode import verifiers
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.sampling.params import Sampling, check_whole
from dflash.errors import RequestError, did_you_mean
from dflash.evaluation.json_lines import read_value
from dflash.evaluation.prompt_sets import Case, load_prompts
from dflash.evaluation.tables import Values
from dflash.model.loading.settings import LoadSettings

_AXES = ("temperatures", "seeds", "batch", "context", "max_tokens")
_KEYS = ("model", "load", "plugins", "draft", "strategies", "prompts", "prompts_of_each", "sampling", "folder", "replay")
_STRATEGY_KEYS = ("name", "strategy", "verifier", "synthetic_acceptance")


class StudyFile(NamedTuple):
    """A study as it was written."""

    model: str
    load: Values
    strategies: dict[str, Strategy]
    prompts: list[Case]
    arguments: Values

    @classmethod
    def read(cls, path: Path) -> "StudyFile":
        """Read a file; its folder is that of relative names."""
        values = read_value(path, tomllib.loads, "TOML")
        _check_keys(values, (*_KEYS, *_AXES), str(path))
        for key in ("model", "draft", "folder"):
            if not isinstance(values.get(key, ""), str):
                raise RequestError(f"{path}: {key} must be a string, got {values[key]!r:.40}")
        for key, kind in (("load", LoadSettings), ("sampling", Sampling)):
            if not isinstance(values.get(key, {}), dict):
                raise RequestError(f"{path}: {key} must be a table, got {values[key]!r:.40}")
            _check_keys(values.get(key, {}), tuple(field.name for field in fields(kind)), f"{path}, {key}")
        for plugin in _list(values, "plugins", []) if "plugins" in values else ():
            if not isinstance(plugin, str):
                raise RequestError(f"{path}: plugins must be names of modules or files, got {plugin!r:.40}")
            load_plugin(str(path.parent / plugin) if plugin.endswith(".py") else plugin)
        draft = values.get("draft")
        given = _list(values, "strategies", ["plain"])
        strategies = dict(_strategy(each, draft) for each in given)
        if len(strategies) < len(given):
            raise RequestError(f"{path}: strategies have equal names; give them a name each")
        most = values.get("prompts_of_each")
        if most is not None:
            check_whole("prompts_of_each", most, 1)
        sets = _list(values, "prompts", ["code", "prose", "agent", "copy"])
        cases = [
            case._replace(name=f"{name} {case.name}")
            for name in sets
            for case in load_prompts(name, folder=path.parent)[:most]
        ]
        arguments = {name: values[name] for name in _AXES if name in values} | values.get("sampling", {})
        if "folder" in values:
            arguments["folder"] = path.parent / values["folder"]
        if "replay" in values:
            given = values["replay"]
            if not isinstance(given, bool | str):
                raise RequestError(f"{path}: replay must be true, or a folder of records, got {given!r:.40}")
            arguments["replay"] = given if isinstance(given, bool) else path.parent / given
        return cls(values.get("model", "demo"), values.get("load", {}), strategies, cases, arguments)


def _strategy(given: object, draft: str | None) -> tuple[str, Strategy]:
    """Return name and strategy of a name, or of a table with a name."""
    table = {"strategy": given} if isinstance(given, str) else given
    if not isinstance(table, dict) or "strategy" not in table:
        raise RequestError(f"strategies: wanted names, or tables with strategy and verifier, got {given!r:.80}")
    _check_keys(table, _STRATEGY_KEYS, "strategies")
    text = table["strategy"]
    strategy = Strategy.named(text, draft)
    keys = ("verifier", "synthetic_acceptance")
    strategy = replace(strategy, verifier=verifiers.chosen(*map(table.get, keys)))
    more = "".join(f", {table[key]}" for key in keys if key in table)
    return table.get("name", text + more), strategy


def _list(values: Values, key: str, default: list[Any]) -> list[Any]:
    found = values.get(key, default)
    if not isinstance(found, list) or not found:
        raise RequestError(f"{key}: must be a list of at least one, got {found!r:.80}")
    return found


def _check_keys(values: Values, known: tuple[str, ...], where: str) -> None:
    for key in values:
        if key not in known:
            raise RequestError(f"{where}: {key!r:.40} is no key, there are {', '.join(known)}{did_you_mean(key, known)}")
