"""`bench --traces`: load a model or a server as agents do."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.cli import arguments as common
from dflash.cli.rates.replay import MAX_STATUS, one_strategy, save_plot
from dflash.cli.terminal import has_terminal, put
from dflash.distribution import needed
from dflash.errors import DFlashError, RequestError

if TYPE_CHECKING:
    from dflash.evaluation.traces import AgentTrace, Goodput, TraceLimits, TraceReport
    from dflash.evaluation.traces.run import TraceRun
    from dflash.evaluation.traces.transport import Transport

_LIMITS = ("turns", "requests", "seconds", "max_context", "think_scale", "think_max", "scale")

OPTIONS = ("clients", "url", *_LIMITS, "goodput", "record")
"""Arguments that only this mode uses."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    group = parser.add_argument_group(
        "load of agents (one of --strategies, --synthetic-acceptance, --temperature, --seed and --plot apply; the exit "
        "status is the number of failures)"
    )
    text = "a folder of traces, or one: lengths, shared prefixes and pauses of agents' sessions, as AIPerf's weka_trace"
    group.add_argument("--traces", metavar="FOLDER", help=text)
    numbers = common.numbers("list of numbers", 1)
    group.add_argument("--clients", type=numbers, metavar="N,...", help="sessions at the same time, a run for each (1)")
    group.add_argument("--url", metavar="URL", help="a server with /v1/completions, in place of MODEL in this process")
    group.add_argument("--turns", type=int, metavar="N", help="most requests of a session")
    group.add_argument("--requests", type=int, metavar="N", help="most requests of a run")
    text = "seconds of a run, over and over the traces; a published result takes 900 (each trace once)"
    group.add_argument("--seconds", type=float, metavar="S", help=text)
    group.add_argument("--max-context", type=int, metavar="N", help="end a session before a request beyond N tokens")
    group.add_argument("--think-scale", type=float, metavar="X", help="factor of the pauses between requests (1)")
    group.add_argument("--think-max", type=float, metavar="S", help="longest of these pauses in seconds")
    group.add_argument("--scale", type=int, metavar="N", help="divide all lengths by N, which divides the block size (1)")
    text = "latencies of a good request in ms, ttft:MS, tpot:MS or e2el:MS, as vllm bench serve has them"
    group.add_argument("--goodput", nargs="+", metavar="NAME:MS", help=text)
    group.add_argument(
        "--record", type=Path, metavar="FILE", help="save settings, numbers and a row for each request as JSON"
    )


def main(arguments: argparse.Namespace) -> int:
    """Replay the traces and print tables. Return the number of failures, at most `MAX_STATUS`."""
    from dflash.evaluation.traces import Goodput, InProcess, ServerURL, TraceLimits, load_traces

    traces = load_traces(arguments.traces)
    given = {name: getattr(arguments, name) for name in _LIMITS}
    limits = TraceLimits(**{name: value for name, value in given.items() if value is not None})
    goodput = Goodput.parse(arguments.goodput or ())
    if arguments.plot is not None:
        with needed("--plot", "plots"):
            import matplotlib  # noqa: F401
    if arguments.record is not None and not arguments.record.parent.is_dir():
        raise DFlashError(f"--record {arguments.record}: there is no such folder")
    temperature = arguments.temperature or 0.0
    if arguments.url is not None:
        for name in ("synthetic_acceptance", "verifier", "draft"):
            if getattr(arguments, name) is not None:
                raise RequestError(f"--{name.replace('_', '-')}: not used by --url: an option of the server")
        server = ServerURL(arguments.url, temperature, arguments.strategies)
        found = _report(arguments, server, traces, limits, goodput)
    else:
        strategy = one_strategy(arguments)
        with common.load(arguments, sequences=max(_clients(arguments)), prefix_cache=True, prefix_cache_reread=True) as lm:
            found = _report(arguments, InProcess(lm, strategy, temperature), traces, limits, goodput)
    put(json.dumps(found.as_dict(), ensure_ascii=False, indent=1) if arguments.json else repr(found))
    save_plot(arguments, found.plot)
    return min(len(found.failures), MAX_STATUS)


def _report(
    arguments: argparse.Namespace,
    transport: "Transport",
    traces: "list[AgentTrace]",
    limits: "TraceLimits",
    goodput: "Goodput",
) -> "TraceReport":
    """Run the traces with each number of clients. The record is saved after each, so that an end loses no earlier one."""
    from dflash.evaluation.traces import TraceReport

    seed = arguments.seed or 0
    about = {"folder": Path(arguments.traces).name, "seed": seed, **transport.about()}
    found = TraceReport([], traces, limits, transport.name, about, goodput)
    for n in _clients(arguments):
        found.runs.append(_run(transport, traces, n, limits, seed))
        if arguments.record is not None:
            _save(arguments.record, found)
    return found


def _save(path: Path, found: "TraceReport") -> None:
    try:
        path.write_text(json.dumps(found.as_dict(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DFlashError(f"--record {path}: {error.strerror}") from error


def _run(transport: "Transport", traces: "list[AgentTrace]", n_clients: int, limits: "TraceLimits", seed: int) -> "TraceRun":
    from dflash.evaluation.measuring import bar
    from dflash.evaluation.traces.run import n_planned, replay_traces

    with bar(has_terminal(), n_planned(traces, n_clients, limits), f"{n_clients} clients") as shown:
        advance = partial(shown.update, 1)
        return replay_traces(transport, traces, n_clients, limits, seed=seed, on_request=lambda _: advance())


def _clients(arguments: argparse.Namespace) -> list[int]:
    return arguments.clients or [1]
