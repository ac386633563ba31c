"""Prompt sets: those bundled with dflash, and local files in the layouts of public benchmarks."""

import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from dflash.decode.sampling.params import Sampling
from dflash.errors import NotFound, RequestError, did_you_mean
from dflash.evaluation.json_lines import read_lines
from dflash.evaluation.prompt_layouts import LAYOUTS, recognized
from dflash.evaluation.replay.request_body import body_turn
from dflash.evaluation.replay.session_file import load_session
from dflash.evaluation.replay.turn import Turn
from dflash.generation.prompts import Prompt
from dflash.json_types import JsonMapping

FOLDER = Path(__file__).parents[1] / "data" / "prompts"

BUNDLED = {"agent": "tools", "code": "coding", "copy": "copying", "prose": "writing"}
"""Category of each bundled set."""

_OWN = ("prompt", "question", "turns", "messages", "input", "body")
"""Fields of a row that hold its prompt."""

_KINDS = {list: "an array", dict: "an object", str: "a string"}

_SAMPLE = re.compile(r"(.+?)(?::(\d+)(?:@(\d+))?)?", re.DOTALL)
"""Name of a set, sample size and seed."""

_LAYOUT = re.compile(r"(?:([\w-]{2,})(?:/([^:]+))?:)?(.+)", re.DOTALL)
"""Layout, category and file. A layout has two letters at least, the drive of a Windows path one."""


class Case(NamedTuple):
    """A prompt with its later turns and settings.

    Parameters
    ----------
    name : str
        Name shown in tables.
    prompt : Prompt
        Text to continue, or messages.
    later : tuple of str
        Later user messages; each follows the completion before it.
    options : dict
        ``tools`` and ``chat_template_kwargs`` for `LM.generate`, if the row has them.
    sampling : dict
        Fields of `Sampling` that the prompt is meant for.
    category : str
        Category in its set, as ``coding``; empty if it has none.
    """

    name: str
    prompt: Prompt
    later: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    sampling: Mapping[str, Any] = {}
    category: str = ""


def load_prompts(name: str | os.PathLike[str], *, folder: str | os.PathLike[str] = "") -> list[Case]:
    """Read a set of prompts from a local file; nothing is downloaded.

    Parameters
    ----------
    name : str or path
        ``[LAYOUT[/CATEGORY]:]FILE[:N[@SEED]]``. FILE is a bundled set: ``code``, ``prose``, ``agent`` (chat with tools) or
        ``copy`` (repetitive text); or a file: JSON or JSONL, also with gzip, or Parquet. LAYOUT is one of
        `dflash.evaluation.prompt_layouts`, as ``humaneval``, or ``agent``, a recorded session (see `load_session`); without
        it the first record decides. With CATEGORY only its prompts are read. ``:N`` takes a random sample of N prompts in
        the order of the file; equal seeds (0) take equal ones.

        Other files hold an object a line with ``prompt`` (text to continue), ``question``, ``turns`` (user messages in
        order) or ``messages``; optional are ``category``, ``system``, ``tools``, ``chat_template_kwargs``, ``sampling`` and
        an id.
    folder : str or path
        Folder in which a relative name is looked for before the current one.

    Raises
    ------
    NotFound
        If there is no such set, layout, file or category.
    RequestError
        If a record does not have the fields of its layout; the message names file, line and field. If fewer than N prompts
        were found.
    """
    layout, category, path, n, seed = _parts(name, Path(folder))
    try:
        cases = list(_cases(path, layout))
    except OSError as error:
        near = did_you_mean(os.fspath(name), BUNDLED)
        raise NotFound(
            f"prompts {os.fspath(name)!r}: {error.strerror}{near}; bundled sets are {', '.join(BUNDLED)}"
        ) from error
    if category:
        known = sorted({case.category for case in cases})
        cases = [case for case in cases if case.category == category]
        if not cases:
            near = did_you_mean(category, known)
            raise NotFound(f"{path}: has no category {category!r:.60}{near}; it has {', '.join(known)!s:.300}")
    if not cases:
        raise RequestError(f"{path}: holds no prompts")
    if n is None:
        return cases
    if n > len(cases):
        raise RequestError(f"{os.fspath(name)}: holds {len(cases)} prompts, fewer than {n}")
    return [cases[index] for index in sorted(random.Random(seed).sample(range(len(cases)), n))]


def _parts(name: str | os.PathLike[str], folder: Path) -> tuple[str, str, Path, int | None, int]:
    """Return layout and category (empty if not given), file, sample size and seed of a name."""

    def placed(file: str | os.PathLike[str]) -> Path:
        return folder / file if (folder / file).exists() else Path(file)

    if not isinstance(name, str) or (name not in BUNDLED and placed(name).exists()):
        return "", "", placed(name), None, 0
    sample = _SAMPLE.fullmatch(name)
    if sample is None:
        raise NotFound(f"prompts {name!r}: wanted [LAYOUT:]FILE[:N]; bundled sets are {', '.join(BUNDLED)}")
    file, n, seed = sample.groups()
    layout, category = "", ""
    if file in BUNDLED:
        file = FOLDER / f"{file}.jsonl"
    elif not placed(file).exists() and (named := _LAYOUT.fullmatch(file)):
        layout, category, file = named.groups(default="")
    if layout and layout not in (*LAYOUTS, "agent"):
        near = did_you_mean(layout, (*LAYOUTS, "agent"))
        raise NotFound(f"prompts {name!r}: no layout {layout!r}{near}; layouts are {', '.join(LAYOUTS)}, agent")
    return layout, category, placed(file), int(n) if n else None, int(seed or 0)


def _cases(path: Path, layout: str) -> Iterator[Case]:
    """Yield the prompts of a file, in the given layout or the one that its first record has."""
    lines = read_lines(path)
    first = lines[0].row if lines else {}
    if {"block_size", "requests"} <= first.keys():
        raise RequestError(f"{path}: holds lengths without texts; `dflash bench --traces` replays such files")
    if layout == "agent" or (not layout and _is_session(first)):
        yield from (_of_turn(turn, category="agent") for turn in load_session(path))
        return
    form = LAYOUTS[layout] if layout else recognized(first)
    default = BUNDLED[path.stem] if path.parent == FOLDER else ""
    for line in lines:
        with line.located():
            row = form.checked_row(line.row) if form else line.row
            if row is not None:
                case = _case({"category": default, **row}, line.number)
                _check(case)
                yield case


def _is_session(first: JsonMapping) -> bool:
    """Return True for the first record of a transcript, of messages or of a rollout."""
    return any(isinstance(first.get(key), str) for key in ("type", "role")) and not any(key in first for key in _OWN)


def _case(row: JsonMapping, number: int) -> Case:
    name = str(next((row[key] for key in ("id", "task_id", "question_id") if row.get(key) is not None), number))
    options = {key: row[key] for key in ("tools", "chat_template_kwargs") if row.get(key) is not None}
    shared = {
        "sampling": {} if row.get("sampling") is None else row["sampling"],
        "category": "" if row.get("category") is None else row["category"],
    }
    if isinstance(row.get("body"), dict):  # a line of an OpenAI batch, or a recorded request
        row = {**row["body"], **{key: row[key] for key in ("custom_id",) if key in row}}
        name = str(row.pop("custom_id", name))
    system = [{"role": "system", "content": row["system"]}] if isinstance(row.get("system"), str) else []
    match row:
        case {"input": _} | {"messages": _, "system": _}:
            return _of_turn(body_turn(name, row), **shared)
        case {"messages": [_, *_] as messages}:
            return Case(name, messages, (), options, **shared)
        case {"turns": [str(first), *later]} if all(isinstance(turn, str) for turn in later):
            return Case(name, [*system, _user(first)], tuple(later), options, **shared)
        case {"question": str(text)}:
            return Case(name, [*system, _user(text)], (), options, **shared)
        case {"prompt": str(_)} if system or any(options.values()):
            raise RequestError("prompt is text to continue, without system, tools or chat_template_kwargs: call it question")
        case {"prompt": str(text)}:
            return Case(name, text, (), {}, **shared)
    raise RequestError("must be an object with prompt, question, turns, messages, input or body")


def _of_turn(turn: Turn, **shared: Any) -> Case:
    options = {"tools": list(turn.tools), "chat_template_kwargs": dict(turn.settings)}
    return Case(turn.name, list(turn.messages), (), {key: value for key, value in options.items() if value}, **shared)


def _check(case: Case) -> None:
    for name, value, kind in (
        ("tools", case.options.get("tools", []), list),
        ("chat_template_kwargs", case.options.get("chat_template_kwargs", {}), dict),
        ("sampling", case.sampling, dict),
        ("category", case.category, str),
    ):
        if not isinstance(value, kind):
            raise RequestError(f"{name}: must be {_KINDS[kind]}, got {value!r:.60}")
    unknown = case.sampling.keys() - {field.name for field in fields(Sampling)}
    if unknown:
        raise RequestError(f"sampling: unknown field {min(unknown)!r:.60}")
    Sampling(**case.sampling)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
