"""`bench`: prefill and decode rates of a model on this machine."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dflash.cli import arguments as common
from dflash.cli.model_arguments import add_context, add_model, check_draft, load_settings
from dflash.cli.rates import replay, strategies, traces
from dflash.cli.terminal import has_terminal, put, size, table, wrapped
from dflash.errors import RequestError
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from dflash.cli.rates.measure import Bench
    from dflash.model.loading.target import Loaded

HELP = "measure a model, compare strategies, replay a session or the load of agents"
USAGE = "[options] [MODEL]"
EXAMPLES = (
    ("demo -p 512 -n 128", "prefill and decode rates, and the cost of wider forwards"),
    ("demo --strategies plain,dflash,mtp:3,lookup --prompts code,prose -n 64", "strategies on the same prompts"),
    ("demo --replay session.jsonl", "an agent's session, without and with the prefix cache"),
    ("demo --traces FOLDER --scale 16 --clients 1,2,4", "sessions of agents, several at once"),
    ("--traces FOLDER --url http://127.0.0.1:8000 --clients 8", "the same against a server"),
)

PROMPTS = {"cpu": [512], "cuda": [512, 2048, 8192, 32768]}
DEPTHS = {"cpu": [0], "cuda": [0, 4096, 16384, 65536]}
"""Default prompt lengths and depths in tokens; sizes beyond the context are left out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser, default="demo")
    add_context(parser)
    sizes = common.numbers("list of sizes", 0)
    parser.add_argument("-p", "--prompt", type=sizes, metavar="N,...", help="prompt lengths (512; GPU: to 32768)")
    parser.add_argument("-n", "--generate", type=sizes, default=[128], metavar="N,...", help="output lengths (128)")
    parser.add_argument(
        "-d", "--depth", type=sizes, metavar="N,...", help="context tokens before the output (0; GPU: to 65536)"
    )
    parser.add_argument("-r", "--repeat", type=int, metavar="N", help="repetitions, fewer if they take more than 3 s (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--without", default="", metavar="RULE,...", help="leave fusion rules out; info --kernels lists them"
    )
    strategies.add_arguments(parser)
    replay.add_arguments(parser)
    traces.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from dflash.model.run.rules import without

    with without(filter(None, arguments.without.split(","))):
        return _main(arguments)


def _main(arguments: argparse.Namespace) -> int:
    if arguments.repeat is not None and arguments.repeat < 1:
        raise RequestError(f"--repeat is {arguments.repeat}, must be at least 1")
    if arguments.traces is not None:
        _refuse(arguments, ("prompt", "depth", "prompts", "replay", "repeat"), "--traces")
        return traces.main(arguments)
    _refuse(arguments, traces.OPTIONS, "measurements without --traces")
    if arguments.replay is not None:
        _refuse(arguments, ("prompt", "depth", "prompts", "synthetic_acceptance", "verifier"), "--replay")
        return replay.main(arguments)
    _refuse(arguments, ("plot",), "measurements without --replay or --traces")
    if arguments.strategies is not None:
        _refuse(arguments, ("prompt", "depth"), "--strategies")
        return strategies.main(arguments)
    _refuse(
        arguments,
        ("prompts", "temperature", "seed", "synthetic_acceptance", "verifier"),
        "measurements without --strategies",
    )
    check_draft(arguments, [])
    from dflash.cli.rates.measure import Bench
    from dflash.decode.warmup.compile_ahead import compile_ahead
    from dflash.generation.progress import progress_line
    from dflash.kernels.gpu.device import on
    from dflash.model.describe import overview
    from dflash.model.loading.settings import LoadSettings
    from dflash.model.loading.target import load_model

    with progress_line(arguments.model, shown=True) as report:
        settings = LoadSettings(**load_settings(arguments, sequences=2))
        loaded = load_model(arguments.model, settings, progress=report, before_kernels=compile_ahead)
    model = loaded.model
    with on(loaded.gpu):
        about = overview(
            loaded.file, kv=model.pools.kv, pending=model.config.pending, threads=model.threads, device=model.device
        )
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
    """Run the requested measurements.

    Returns: JSON values: ``rates`` by name, ``shares`` of time by name and op (CPU only; on a GPU ops run asynchronously),
        ``forward`` costs, and the copy bandwidth ``copy_gb_s`` that decode rates are compared with.
    """
    from dflash.cli.rates.traffic import Traffic
    from dflash.evaluation.measuring import bar
    from dflash.kernels.copy import bandwidth

    model = loaded.model
    context, kind = model.config.context, model.device
    prompts = arguments.prompt if arguments.prompt is not None else _fitting(PROMPTS[kind], context)
    longest = max(arguments.generate) + 1
    depths = arguments.depth if arguments.depth is not None else _fitting(DEPTHS[kind], context - longest) or [0]
    copy = bandwidth(kind, threads=model.threads)
    traffic = Traffic.of(loaded.file, model.config, kv=model.pools.kv, device=kind)
    rates: JsonObject = {}
    shares: dict[str, dict[str, float]] = {}
    n_tests = sum(map(bool, prompts)) + len(depths) * sum(map(bool, arguments.generate)) + 1
    with bar(has_terminal(), n_tests, "bench") as shown:
        for n in filter(None, prompts):
            shown.set_description(f"pp{n}")
            rates[f"pp{n}"] = bench.reading(n)
            if kind == "cpu":
                shares[f"pp{n}"] = bench.shares(partial(bench.read, n))
            shown.update()
        for depth in sorted(depths):
            for n in filter(None, arguments.generate):
                name = f"tg{n} @ d{depth}" if depth else f"tg{n}"
                shown.set_description(name)
                rate = bench.writing(n, depth)
                moved = traffic.at(depth + n / 2) * rate["mean"]
                rates[name] = {**rate, "gb_s": moved / 1e9, "of_copy": moved / copy}
                if kind == "cpu":
                    shares[name] = bench.shares(partial(bench.write, n, depth))
                shown.update()
        shown.set_description("wider forwards")
        forward = bench.forward_costs()
    return {
        "copy_gb_s": copy / 1e9,
        "bytes_a_token": traffic._asdict(),
        "rates": rates,
        "shares": shares,
        "forward": forward,
    }


def as_text(about: JsonObject, results: JsonObject) -> str:
    """Format the results of `measure` as Markdown tables; `about` is that of `dflash.model.describe.overview`."""
    model, device = about["model"], about["device"]
    mix = next(iter(about["quantization"]))
    head = f"{model['name']} {mix}, {size(about['memory']['weights'])}, {model['parameters'] / 1e6:,.1f} M parameters\n"
    head += f"{device['processor']}, " + (f"{device['threads']} threads" if "threads" in device else device["architecture"])
    head += f"; copy bandwidth {results['copy_gb_s']:,.1f} GB/s, reads plus writes"
    head = "\n".join(wrapped(line, file=sys.stdout) for line in head.splitlines())
    parts = [head, _rates(results["rates"]), _shares(results["shares"]), _costs(results["forward"])]
    return "\n\n".join(part for part in parts if part)


def _rates(rates: dict[str, JsonObject]) -> str:
    rows = [("test", "tokens/s", "ms per token", "GB/s", "share of copy", "host, µs per step")]
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


def _costs(costs: list[JsonObject]) -> str:
    head = ["tokens in a forward", "ms", "relative to one", "host, µs", "launches"]
    rows = [[cost["tokens"], f"{cost['ms']:.3f}", f"{cost['relative']:.2f}", f"{cost['host_us']:.0f}"] for cost in costs]
    if "launches" not in costs[0]:
        return table([head[:3], *(row[:3] for row in rows)], right=range(3))
    return table([head, *([*row, cost["launches"]] for row, cost in zip(rows, costs, strict=True))], right=range(5))


def _fitting(sizes: Sequence[int], limit: int) -> list[int]:
    return [n for n in sizes if n <= limit]


def _refuse(arguments: argparse.Namespace, names: Sequence[str], by: str) -> None:
    """Raise RequestError for arguments that this mode does not use."""
    for name in names:
        if getattr(arguments, name) is not None:
            raise RequestError(f"--{name.replace('_', '-')}: not used by {by}")
