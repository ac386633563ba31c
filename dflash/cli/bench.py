"""`bench`: how fast a model reads and writes here."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dflash.cli import strategies
from dflash.cli.model_arguments import add_context, add_model, check_draft
from dflash.cli.terminal import has_terminal, put, size, table
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.cli.measure import Bench
    from dflash.model.load import Loaded

HELP = "measure prompt reading (pp), text generation (tg) and wider forwards; or strategies side by side"

PROMPTS = {"cpu": [512], "cuda": [512, 2048, 8192, 32768]}
DEPTHS = {"cpu": [0], "cuda": [0, 4096, 16384, 65536]}
"""What is measured unless asked otherwise, as far as the context goes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser, default="demo")
    add_context(parser)
    parser.add_argument("-p", "--prompt", type=_sizes, metavar="N,...", help="prompt lengths (512; GPU: to 32768)")
    parser.add_argument("-n", "--generate", type=_sizes, default=[128], metavar="N,...", help="texts to write (128)")
    parser.add_argument("-d", "--depth", type=_sizes, metavar="N,...", help="tokens before those (0; GPU: to 65536)")
    parser.add_argument("-r", "--repeat", type=int, metavar="N", help="repeats, as far as 3 s go (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    strategies.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    if arguments.repeat is not None and arguments.repeat < 1:
        raise RequestError(f"--repeat is {arguments.repeat}, must be at least 1")
    if arguments.strategies is not None:
        _refuse(arguments, ("prompt", "depth"), "--strategies")
        return strategies.main(arguments)
    _refuse(arguments, ("prompts", "temperature", "seed"), "what is measured without --strategies")
    check_draft(arguments, [])
    from dflash.cli.measure import Bench
    from dflash.generation.progress import stages
    from dflash.model.describe import overview
    from dflash.model.load import load_model

    with stages(has_terminal()) as tell:
        loaded = load_model(
            arguments.model,
            device=arguments.device,
            threads=arguments.threads,
            context=arguments.context,
            sequences=2,
            kv=arguments.kv,
            progress=tell,
        )
    about = overview(loaded.file, kv=arguments.kv, threads=loaded.model.threads, device=loaded.model.device)
    bench = Bench(loaded.model, repeat=arguments.repeat or 5)
    try:
        results = measure(bench, loaded, arguments)
    finally:
        bench.close()
    if arguments.json:
        put(json.dumps({"model": about["model"], "device": about["device"], **results}, ensure_ascii=False, indent=2))
    else:
        put(as_text(about, results))
    return 0


def measure(bench: "Bench", loaded: "Loaded", arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything that was asked for.

    Returns
    -------
    dict
        JSON values only: ``rates`` by name, ``shares`` of time by name and op (not on a GPU, where ops run on after the
        call), ``forward`` costs, and ``copy_gb_s`` that the rates of writing are held against.
    """
    from dflash.cli.traffic import Traffic
    from dflash.kernels.copy import bandwidth

    model = loaded.model
    context, kind = model.config.context, model.device
    prompts = arguments.prompt if arguments.prompt is not None else _fitting(PROMPTS[kind], context)
    longest = max(arguments.generate) + 1
    depths = arguments.depth if arguments.depth is not None else _fitting(DEPTHS[kind], context - longest) or [0]
    copy = bandwidth(kind, threads=model.threads)
    traffic = Traffic.of(loaded.file, model.config, kv=arguments.kv, device=kind)
    rates: dict[str, Any] = {}
    shares: dict[str, dict[str, float]] = {}
    for n in filter(None, prompts):
        rates[f"pp{n}"] = bench.reading(n)
        if kind == "cpu":
            shares[f"pp{n}"] = bench.shares(partial(bench.read, n))
    for depth in sorted(depths):
        for n in filter(None, arguments.generate):
            name = f"tg{n} @ d{depth}" if depth else f"tg{n}"
            rate = bench.writing(n, depth)
            moved = traffic.at(depth + n / 2) * rate["mean"]
            rates[name] = {**rate, "gb_s": moved / 1e9, "of_copy": moved / copy}
            if kind == "cpu":
                shares[name] = bench.shares(partial(bench.write, n, depth))
    return {
        "copy_gb_s": copy / 1e9,
        "bytes_a_token": traffic._asdict(),
        "rates": rates,
        "shares": shares,
        "forward": bench.forward_costs(),
    }


def as_text(about: dict[str, Any], results: dict[str, Any]) -> str:
    """Lay out the results as Markdown tables.

    Parameters
    ----------
    about : dict
        From `dflash.model.describe.overview`.
    results : dict
        From `measure`.
    """
    model, device = about["model"], about["device"]
    mix = next(iter(about["quantization"]))
    head = f"{model['name']} {mix}, {size(about['memory']['weights'])}, {model['parameters'] / 1e6:,.1f} M parameters\n"
    head += f"{device['processor']}, " + (f"{device['threads']} threads" if "threads" in device else device["architecture"])
    head += f"; a copy moves {results['copy_gb_s']:,.1f} GB/s, read and written"
    parts = [head, _rates(results["rates"]), _shares(results["shares"]), _costs(results["forward"])]
    return "\n\n".join(part for part in parts if part)


def _rates(rates: dict[str, dict[str, Any]]) -> str:
    rows = [("test", "tokens/s", "ms a token", "GB/s", "of a copy", "host, µs a step")]
    for name, rate in rates.items():
        speed = name, f"{rate['mean']:,.2f} ± {rate['std']:.2f}", f"{1e3 / rate['mean']:.4g}"
        host = sum(rate["host_us"].values()) if "host_us" in rate else 0
        moved = (f"{rate['gb_s']:,.1f}", f"{rate['of_copy']:.1%}", f"{host:.0f}") if "gb_s" in rate else ("", "", "")
        rows.append((*speed, *moved))
    return table(rows, right=range(1, 6)) if rates else ""


def _shares(shares: dict[str, dict[str, float]]) -> str:
    ops = sorted(dict.fromkeys(op for share in shares.values() for op in share), key=lambda op: op == "other")
    cells = [[op, *(f"{share.get(op, 0):.1%}" for share in shares.values())] for op in ops]
    return table([["share of time", *shares], *cells], right=range(1, len(shares) + 1)) if shares else ""


def _costs(costs: list[dict[str, Any]]) -> str:
    head = ["tokens in a forward", "ms", "of one token's", "host, µs", "launches"]
    rows = [[cost["tokens"], f"{cost['ms']:.3f}", f"{cost['relative']:.2f}", f"{cost['host_us']:.0f}"] for cost in costs]
    if "launches" not in costs[0]:
        return table([head[:3], *(row[:3] for row in rows)], right=range(3))
    return table([head, *([*row, cost["launches"]] for row, cost in zip(rows, costs, strict=True))], right=range(5))


def _fitting(sizes: Sequence[int], room: int) -> list[int]:
    return [n for n in sizes if n <= room]


def _refuse(arguments: argparse.Namespace, names: Sequence[str], by: str) -> None:
    """Refuse what would be said in vain."""
    for name in names:
        if getattr(arguments, name) is not None:
            raise RequestError(f"--{name}: means nothing to {by}")


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 0:
        raise ValueError
    return sizes


_sizes.__name__ = "list of sizes"  # argparse names the type in its message
