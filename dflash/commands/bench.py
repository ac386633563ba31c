"""`bench`: how fast a model reads and writes here."""

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from dflash.commands import arguments as common
from dflash.commands.terminal import has_terminal, size, table
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.commands.measure import Bench

HELP = "measure prompt reading (pp) and text generation (tg)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    common.add_model(parser, default="demo")
    parser.add_argument("-p", "--prompt", type=_sizes, default=[512], metavar="N,...", help="prompt lengths (512)")
    parser.add_argument("-n", "--generate", type=_sizes, default=[128], metavar="N,...", help="texts to write (128)")
    parser.add_argument("-d", "--depth", type=_sizes, default=[0], metavar="N,...", help="tokens before those (0)")
    parser.add_argument("-r", "--repeat", type=int, default=5, metavar="N", help="repeats of each (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from dflash.commands.measure import Bench
    from dflash.model.load import load_model
    from dflash.overview import overview
    from dflash.progress import stages

    if arguments.repeat < 1:
        raise RequestError(f"--repeat is {arguments.repeat}, must be at least 1")
    with stages(has_terminal()) as tell:
        loaded = load_model(
            arguments.model,
            device=arguments.device,
            threads=arguments.threads,
            context=arguments.context,
            sequences=1,
            kv=arguments.kv,
            progress=tell,
        )
    about = overview(loaded.file, kv=arguments.kv, threads=loaded.model.threads, device=loaded.model.device)
    bench = Bench(loaded.model, repeat=arguments.repeat)
    results = measure(bench, arguments)
    if arguments.json:
        print(json.dumps({"model": about["model"], "device": about["device"], **results}, ensure_ascii=False, indent=2))
    else:
        print(as_text(about, results))
    return 0


def measure(bench: "Bench", arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything that was asked for; what comes back holds JSON values only."""
    tests = [(f"pp{n}", n, partial(bench.read, n)) for n in arguments.prompt if n]
    for depth in arguments.depth:
        at = f" @ d{depth}" if depth else ""
        tests += [(f"tg{n}{at}", n, partial(bench.write, n, depth)) for n in arguments.generate if n]
    return {
        "rates": {name: bench.rate(n, run) for name, n, run in tests},
        "shares": {name: bench.shares(run) for name, _, run in tests},
        "forward": bench.forward_costs(),
    }


def as_text(about: dict[str, Any], results: dict[str, Any]) -> str:
    """Lay out the results as Markdown tables.

    Parameters
    ----------
    about : dict
        From `dflash.overview.overview`.
    results : dict
        From `measure`.
    """
    model, device = about["model"], about["device"]
    mix = next(iter(about["quantization"]))
    what = f"{model['name']} {mix}", size(about["memory"]["weights"]), f"{model['parameters'] / 1e6:,.1f} M"
    rows = [("model", "size", "params", "backend", "threads", "test", "t/s")]
    for name, rate in results["rates"].items():
        rows.append((*what, device["kind"], device["threads"], name, f"{rate['mean']:,.2f} ± {rate['std']:.2f}"))
    parts = [table(rows, right=(1, 2, 4, 5, 6))]
    tests = list(results["shares"])
    ops = sorted({op for share in results["shares"].values() for op in share}, key=lambda op: op == "other")
    if tests:
        cells = [[op, *(f"{results['shares'][test].get(op, 0):.1%}" for test in tests)] for op in ops]
        parts.append(table([["share of time", *tests], *cells], right=range(1, len(tests) + 1)))
    costs = [(cost["tokens"], f"{cost['ms']:.2f}", f"{cost['relative']:.2f}") for cost in results["forward"]]
    parts.append(table([("tokens in a forward", "ms", "of one token's"), *costs], right=(0, 1, 2)))
    return "\n\n".join(parts)


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 0:
        raise ValueError
    return sizes


_sizes.__name__ = "list of sizes"  # argparse names the type in its message
