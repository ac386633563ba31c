"""Prompt sets: those bundled with dflash, and JSONL files in the formats of public benchmarks."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from dflash.decode.sampling.params import Sampling
from dflash.errors import NotFound, RequestError, did_you_mean
from dflash.evaluation.json_lines import read_lines
from dflash.evaluation.replay.request_body import body_turn
from dflash.generation.prompts import Prompt

FOLDER = Path(__file__).parents[1] / "data" / "prompts"

BUNDLED = tuple(sorted(path.stem for path in FOLDER.glob("*.jsonl")))


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
    """

    name: str
    prompt: Prompt
    later: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    sampling: Mapping[str, Any] = {}


def load_prompts(name: str | os.PathLike[str]) -> list[Case]:
    """Read a set of prompts.

    Parameters
    ----------
    name : str or path
        A bundled set: ``code``, ``prose``, ``agent`` (chat with tools) or ``copy`` (repetitive text). Or a JSONL file: each
        line is an object with ``prompt`` (text to continue, as in HumanEval), ``question`` (as in GSM8K), ``turns`` (user
        messages in order, as in MT-Bench) or ``messages``; optional are ``tools``, ``chat_template_kwargs``, ``sampling``
        and an id.

    Raises
    ------
    NotFound
        If there is no such set or file.
    RequestError
        If a line has none of these forms; the message names the line.
    """
    path = FOLDER / f"{name}.jsonl" if name in BUNDLED else Path(name)
    try:
        lines = read_lines(path)
    except OSError as error:
        near = did_you_mean(os.fspath(name), BUNDLED)
        raise NotFound(
            f"prompts {os.fspath(name)!r}: {error.strerror}{near}; bundled sets are {', '.join(BUNDLED)}"
        ) from error
    cases = []
    for line in lines:
        with line.located():
            cases.append(_case(line.row, line.number))
            _check(cases[-1])
    if not cases:
        raise RequestError(f"{path}: holds no prompts")
    return cases


def _case(row: Mapping[str, Any], number: int) -> Case:
    name = str(next((row[key] for key in ("id", "task_id", "question_id") if key in row), number))
    options = {key: row[key] for key in ("tools", "chat_template_kwargs") if row.get(key) is not None}
    sampling = {} if row.get("sampling") is None else row["sampling"]
    if isinstance(row.get("body"), dict):  # a line of an OpenAI batch, or a recorded request
        row = {**row["body"], **{key: row[key] for key in ("custom_id",) if key in row}}
        name = str(row.pop("custom_id", name))
    match row:
        case {"input": _} | {"messages": _, "system": _}:
            turn = body_turn(name, row)
            more = {"tools": list(turn.tools), "chat_template_kwargs": dict(turn.settings)}
            return Case(name, list(turn.messages), (), {key: value for key, value in more.items() if value}, sampling)
        case {"messages": [_, *_] as messages}:
            return Case(name, messages, (), options, sampling)
        case {"turns": [str(first), *later]} if all(isinstance(turn, str) for turn in later):
            return Case(name, [_user(first)], tuple(later), options, sampling)
        case {"question": str(text)}:
            return Case(name, [_user(text)], (), options, sampling)
        case {"prompt": str(text)}:
            return Case(name, text, (), {}, sampling)
    raise RequestError("must be an object with prompt, question, turns, messages, input or body")


def _check(case: Case) -> None:
    for name, value, kind in (
        ("tools", case.options.get("tools", []), list),
        ("chat_template_kwargs", case.options.get("chat_template_kwargs", {}), dict),
        ("sampling", case.sampling, dict),
    ):
        if not isinstance(value, kind):
            raise RequestError(f"{name}: must be {'an array' if kind is list else 'an object'}, got {value!r:.60}")
    unknown = case.sampling.keys() - {field.name for field in fields(Sampling)}
    if unknown:
        raise RequestError(f"sampling: unknown field {min(unknown)!r:.60}")
    Sampling(**case.sampling)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
