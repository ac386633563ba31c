"""Command-line arguments shared by several commands, and their conversion."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.cli.model_arguments import (
    add_draft,
    add_template_file,
    add_verifier,
    check_draft,
    draft_settings,
    load_settings,
    named_verifier,
)
from dflash.errors import RequestError, did_you_mean
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from dflash.decode.drafting.drafter import Strategy
    from dflash.lm import LM


_ROWS = (
    ("temperature", "T", float, 0.0, "0 is greedy (default)"),
    ("top_k", "K", int, 0, "sample from the K most likely tokens; 0: all"),
    ("top_p", "P", float, 1.0, "sample from the most likely tokens whose probabilities sum to P"),
    ("min_p", "P", float, 0.0, "drop tokens below P times the largest probability"),
    ("repetition_penalty", "X", float, 1.0, "1: off; above 1: repeat less"),
    ("presence_penalty", "X", float, 0.0, "subtract X from the logit of every token in the output"),
    ("frequency_penalty", "X", float, 0.0, "subtract X for each occurrence in the output"),
    ("seed", "N", int, None, "the same seed gives the same output"),
    ("max_tokens", "N", int, None, "maximum number of output tokens; -1 is no limit"),
)
"""Arguments of `LM.generate`: name, symbol of the value, type, default, help."""

SAMPLING = {row[0]: row[2] for row in _ROWS}
"""Names and types of these arguments."""

REASONING = ("dim", "fold", "hide")
"""Ways to show reasoning: its text, dimmed on a terminal; its number of words; not at all."""

_ALIASES = {
    "temperature": ("--temp",),
    "repetition_penalty": ("--repeat-penalty",),
    "seed": ("-s",),
    "max_tokens": ("-n", "--predict", "--n-predict"),
}
"""Names of the same arguments in llama.cpp."""


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the sampling arguments and those that end a completion."""
    group = parser.add_argument_group("sampling (default: greedy)")
    for name, symbol, kind, default, text in _ROWS:
        names = f"--{name.replace('_', '-')}", *_ALIASES.get(name, ())
        group.add_argument(*names, type=kind, default=default, metavar=symbol, help=text)
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; may be repeated")


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Add the decoding strategy and the recoveries."""
    group = parser.add_argument_group("strategy (default: plain; no drafter changes the output, some verifiers do)")
    group.add_argument("--strategy", metavar="NAME", help="plain, dflash:15, ddtree:22, mtp:3, lookup, ...; info lists all")
    add_draft(group)
    add_verifier(group)
    group.add_argument("--recover", metavar="NAME,...", help="recoveries to turn on, as loop,min:20; info lists all")


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add sampling, strategy, the arguments for the chat template, and how answers are shown."""
    add_sampling(parser)
    add_strategy(parser)
    group = parser.add_argument_group("chat template")
    add_template_file(group)
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument("--tools", type=Path, metavar="FILE", help="JSON array of tools in OpenAI's format")
    group.add_argument("--no-think", action="store_true", help="turn reasoning off (enable_thinking = false)")
    group = parser.add_argument_group("display")
    text = "show reasoning dimmed (default), fold it to its number of words, or hide it"
    group.add_argument("--show-reasoning", choices=REASONING, default=REASONING[0], help=text)
    text = "colour the text by the origin of its tokens: accepted, bonus, injected; rejected ones are struck through"
    group.add_argument("--show-tokens", action="store_true", help=text)


def showing(arguments: argparse.Namespace, lm: "LM") -> JsonObject:
    """Return the settings of `dflash.cli.answer.show`."""
    return {"reasoning": arguments.show_reasoning, "tokenizer": lm.tokenizer if arguments.show_tokens else None}


def numbers(name: str, least: int) -> Callable[[str], list[int]]:
    """Return a type of arguments: whole numbers of at least `least`, divided by commas."""

    def parse(text: str) -> list[int]:
        found = [int(part) for part in text.split(",")]
        if min(found) < least:
            raise ValueError
        return found

    parse.__name__ = name  # argparse names the type in its message
    return parse


def load(arguments: argparse.Namespace, *, sequences: int = 1, **settings: Any) -> "LM":
    """Load the model that the arguments name, and show on stderr that loading goes on; `settings` are of `dflash.load`."""
    import dflash

    settings |= {"sequences": sequences, "isolate": False}  # the grammars are those of the user
    return dflash.load(arguments.model, **load_settings(arguments, **settings), progress=True)


def prepare(lm: "LM", chosen: "Strategy") -> None:
    """Load and compile what a strategy needs; show on stderr that this goes on."""
    import dflash
    from dflash.decode.registry import name
    from dflash.generation.progress import progress_line

    with progress_line(f"strategy {name(chosen)}", shown=True) as report:
        if report is not None:
            measures = isinstance(chosen.drafter, dflash.Adaptive)
            report("step times of the model" if measures else "draft model")
        lm.prepare(chosen)


def sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling arguments and limits for `LM.generate`."""
    given = {name: getattr(arguments, name) for name in ("stop", *SAMPLING)}
    return {**given, "max_tokens": None} if arguments.max_tokens == -1 else given


def sampling_value(name: str, text: str) -> JsonObject:
    """Return one of the sampling arguments by its name, from text."""
    from dflash.decode.sampling.params import Sampling, check_whole

    if name not in SAMPLING:
        raise RequestError(f"{name!r:.40} is no setting{did_you_mean(name, SAMPLING)}: {', '.join(SAMPLING)}")
    try:
        value: Any = SAMPLING[name](text)
    except ValueError:
        kind = "whole number" if SAMPLING[name] is int else "number"
        raise RequestError(f"{name}: must be a {kind}, got {text!r:.40}") from None
    if name != "max_tokens":
        Sampling(**{name: value})
    elif value == -1:
        value = None
    else:
        check_whole(name, value, 1)
    return {name: value}


def strategy(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the strategy and recoveries for `LM.generate`."""
    from dflash.generation.recovery.names import settle

    return {"recover": settle(arguments.recover), "strategy": named_strategy(arguments)}


def named_strategy(arguments: argparse.Namespace) -> "Strategy":
    """Make the strategy that the arguments name."""
    made = strategy_of(arguments, arguments.strategy)
    check_draft(arguments, [arguments.strategy or ("dflash" if arguments.draft else "plain")])
    return made


def strategy_of(arguments: argparse.Namespace, name: str | None) -> "Strategy":
    """Make the strategy of a name with the draft options and the verifier of the arguments."""
    from dflash.serve.strategy_choice import named

    made = named(name, arguments.draft, **draft_settings(arguments))
    return replace(made, verifier=named_verifier(arguments))


def template_settings(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return the variables for the chat template."""
    return {"enable_thinking": False} if arguments.no_think else None


def tools(arguments: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Read the file of tools."""
    if arguments.tools is None:
        return None
    from dflash.evaluation.json_lines import read_value

    value = read_value(arguments.tools)
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RequestError(f"{arguments.tools}: must hold a JSON array of tools in OpenAI's format")
    return value
