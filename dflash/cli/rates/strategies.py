"""`bench --strategies`: compare strategies on sets of prompts."""

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from dflash.cli import arguments as common
from dflash.cli.model_arguments import add_draft, add_verifier, check_draft, draft_settings, named_verifier
from dflash.cli.terminal import has_terminal, put

if TYPE_CHECKING:
    from dflash.decode.drafters import Strategy


OPTIONS = ("prompts", "temperature", "seed", "synthetic_acceptance", "verifier")
"""Options of comparisons alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    group = parser.add_argument_group("comparison of strategies (-n is then the maximum output length, -r defaults to 1)")
    group.add_argument(
        "--strategies", metavar="NAME,...", help="plain,dflash,ddtree:22,mtp:3,lookup; the first is the baseline"
    )
    group.add_argument("--prompts", metavar="SET,...", help="bundled sets, or [LAYOUT:]FILE[:N] (agent,code,copy,prose)")
    add_draft(group)
    group.add_argument("--temperature", type=float, metavar="T", help="temperature in place of that of the prompt sets")
    add_verifier(group)
    group.add_argument("--seed", type=int, metavar="N", help="sampling seed (0)")


def main(arguments: argparse.Namespace) -> int:
    """Run every set with every strategy and print a table for each set."""
    from dflash.evaluation.compare import compare
    from dflash.evaluation.prompt_sets import load_prompts

    chosen = named_strategies(arguments)
    sets = {name: load_prompts(name) for name in (arguments.prompts or "agent,code,copy,prose").split(",")}
    given = {name: getattr(arguments, name) for name in ("temperature", "seed")}
    settings = {
        "max_tokens": max(arguments.generate),
        "repeat": arguments.repeat or 1,
        "progress": has_terminal(),
        **{name: value for name, value in given.items() if value is not None},
    }
    found = {}
    with common.load(arguments) as lm:
        device = lm.info()["device"]
        for name, cases in sets.items():
            found[name] = compare(lm, cases, chosen, **settings)
            if not arguments.json:
                put(f"{name}: {len(found[name].prompts)} prompts\n\n{found[name]!r}\n")
    if arguments.json:
        results = {name: comparison.as_dict() for name, comparison in found.items()}
        put(json.dumps({"device": device, "sets": results}, ensure_ascii=False, indent=2))
    return 0 if all(comparison.same_text for comparison in found.values()) else 1


def named_strategies(arguments: argparse.Namespace) -> "dict[str, Strategy]":
    """Return the strategies of ``--strategies``, plain if it is not given, by name."""
    from dflash.decode.drafting.drafter import Nothing
    from dflash.decode.registry import parts
    from dflash.evaluation.compare import named

    names = [name.strip() for name in parts("plain" if arguments.strategies is None else arguments.strategies)]
    check_draft(arguments, names)
    chosen = named(names, arguments.draft, draft_settings(arguments))
    verifier = named_verifier(arguments)
    return chosen | {name: replace(one, verifier=verifier) for name, one in chosen.items() if one.drafter != Nothing()}
