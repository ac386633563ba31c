"""`bench --replay`: send the prompts of a recorded session, without and with the prefix cache."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.cli import arguments as common
from dflash.cli.rates.strategies import named_strategies
from dflash.cli.terminal import has_terminal, put
from dflash.errors import DFlashError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from dflash.decode.drafters import Strategy
    from dflash.evaluation.replay import Turn

SYNTHETIC = "synthetic"
"""Name of the built-in session."""

MAX_STATUS = 100
"""Largest exit status; shells use those from 126 on for other purposes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    group = parser.add_argument_group(
        "replay of a session, cold and warm (-n, -r, --temperature, --seed and one of --strategies apply; the exit status "
        "is the number of failures)"
    )
    group.add_argument(
        "--replay",
        metavar="SESSION",
        help=f"JSONL: a transcript of Claude Code, messages, or request bodies; or {SYNTHETIC}[:TURNS]",
    )
    group.add_argument("--plot", type=Path, metavar="FILE", help="save the plot of the replay, or of --traces")


def main(arguments: argparse.Namespace) -> int:
    """Replay the session and print a table. Return the number of failures, at most `MAX_STATUS`."""
    from dflash.evaluation.replay import replay

    strategy = one_strategy(arguments)
    turns = session(arguments.replay)
    given = {name: getattr(arguments, name) for name in ("temperature", "seed")}
    settings = {name: value for name, value in given.items() if value is not None}
    with common.load(arguments, sequences=2, prefix_cache=True) as lm:
        found = replay(
            lm,
            turns,
            strategy=strategy,
            max_tokens=max(arguments.generate),
            repeat=arguments.repeat or 1,
            progress=has_terminal(),
            **settings,
        )
        device = lm.info()["device"]
    save_plot(arguments, found.plot)
    if arguments.json:
        put(json.dumps({"device": device, **found.as_dict()}, ensure_ascii=False, indent=2))
    else:
        put(repr(found))
    return min(len(found.failures), MAX_STATUS)


def one_strategy(arguments: argparse.Namespace) -> "Strategy":
    """Return the strategy of ``--strategies``; raise RequestError if it names several."""
    chosen = named_strategies(arguments)
    if len(chosen) != 1:
        raise RequestError(f"--strategies {arguments.strategies}: a replay takes one strategy, got {len(chosen)}")
    return next(iter(chosen.values()))


def save_plot(arguments: argparse.Namespace, plot: "Callable[[], Figure]") -> None:
    """Save what `plot` draws in the file of ``--plot``, if one is given."""
    if arguments.plot is None:
        return
    try:
        plot().savefig(arguments.plot)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DFlashError(f"--plot {arguments.plot}: {reason}") from error


def session(name: str) -> "list[Turn]":
    """Return the turns of a file or of the built-in session."""
    from dflash.evaluation.replay import load_session, synthetic

    kind, _, n = name.partition(":")
    if kind != SYNTHETIC:
        return load_session(name)
    if n and not (n.isascii() and n.isdigit()):
        raise RequestError(f"--replay {name}: the number of turns must be a whole number, as in {SYNTHETIC}:10")
    return synthetic(int(n)) if n else synthetic()
