"""Speed and Omega of speculative decoding at given acceptance lengths, over sequences and contexts, without a prefill.

    python benchmarks/speculation_table.py 27B.gguf --preset 27b --draft DRAFT.gguf --out 27b.jsonl --seconds 180
    python benchmarks/speculation_table.py 35B-A3B.gguf --preset small --draft DRAFT.gguf --out 35b.jsonl
    python benchmarks/speculation_table.py --table 27b.jsonl 35b.jsonl

Files need true shapes only: acceptance is synthetic, at the golden lengths of the preset or at assumed ones, and says so.
Pages of keys and values hold those of 256 random tokens; every sequence has pages of its own, and MTP head and
block draft have contexts of the same length. Each cell is one JSON line, written when it is measured. A run takes up
where the file ends, and stops before a cell once `--seconds` have passed; run the same command again for the rest, and for
cells that failed. Without `--draft` the block drafts are left out.
"""

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP, _HeadSnapshot
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.decode.snapshot import SessionSnapshot
from dflash.decode.verifiers import golden, parse_length
from dflash.errors import DFlashError
from dflash.evaluation.environment import environment
from dflash.kernels.copy import bandwidth
from dflash.kernels.gpu.device import holding
from dflash.kernels.ragged import PAGE
from dflash.model.batch import Span
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model
from dflash.model.state.host_arrays import placed_like
from dflash.model.state.sequence_state import Snapshot

SKIPPED = 4
"""Steps before the measured ones: prefill of the last prompt tokens, captures of graphs."""

GRIDS = {
    "27b": {1024: (1, 4, 16, 64), 32_768: (1, 4, 16), 131_072: (1, 4)},
    "small": {1024: (1, 4, 16, 64)},
    "tiny": {512: (1, 2)},
}
"""Sequences by context, for each preset."""

GOLDEN = tuple((k, golden("qwen3.8-27b", "mtp", k=k, thinking=on)) for on in (True, False) for k in (1, 2, 3, 4))
ASSUMED_MTP = tuple((3, parse_length(text)) for text in ("2", "2.5", "3"))
ASSUMED_BLOCK = tuple((15, parse_length(text)) for text in ("4", "6"))
HEADS = {"27b": GOLDEN, "small": ASSUMED_MTP, "tiny": ASSUMED_MTP[:1]}
"""Draft tokens of the MTP head and acceptance, for each preset."""


_RATES = ("length", "ms a step", "tok/s of one", "of all", "×")
_HEAD = ("context", "sequences", "strategy", *_RATES, "Omega", "draft", "rows", "host", "source")


def strategies(preset, draft):
    """Yield name and strategy, plain first."""
    yield "plain", Plain()
    for k, length in HEADS[preset]:
        yield f"mtp:{k}", Strategy(MTP(), Chain(k), verifier=length)
    for k, length in ASSUMED_BLOCK if draft else ():
        yield f"dflash:{k}", Strategy(DFlash(draft), Chain(k), verifier=length)


class Contexts:
    """Sequences of one model that begin after a context which no forward has read."""

    def __init__(self, model):
        self.model = model
        self._draws = np.random.default_rng(0)
        self._fill()

    def ids(self, n):
        """Return `n` random token ids."""
        return self._draws.integers(0, min(self.model.config.n_vocab, 50_000), n, dtype=np.int32)

    def _fill(self):
        """Set every page to the keys and values of one page of random tokens."""
        state, ids = self.model.state(), self.ids(PAGE)
        state.reserve(PAGE)
        self.model.forward([Span(state, ids, np.arange(-1, PAGE - 1, dtype=np.int32), prefill=True, logits=False)])
        self.model.finish()
        page = state.pages[0]
        for cache in self.model.pools.caches:
            for array in cache:
                with holding(array):
                    array[:] = array[:, page : page + 1].copy()
        state.close()
        self._recurrent = self.model.pools.empty_slot_copy()

    def session(self, depth, strategy, n_steps):
        """Return a session after `depth` tokens, and its snapshot, which is to be closed once it has started."""
        ids = self.ids(depth + 2)
        pools, drafter = self.model.pools, strategy.drafter
        snapshot = Snapshot(pools, depth, pools.take_pages(-(-depth // PAGE)), self._recurrent)
        whole = SessionSnapshot.restored(ids[:depth], len(ids), snapshot, drafter, self._draft_snapshot(drafter, depth))
        most = 64 * (n_steps + SKIPPED + 2)
        return Session(ids.tolist(), strategy=strategy, max_tokens=most, prefix=whole, use_prefix_cache=False), whole

    def _draft_snapshot(self, drafter, depth):
        """Return the snapshot of a drafter that has read `depth` tokens."""
        if isinstance(drafter, MTP):
            head = self.model.attachments[drafter]
            pages = head.pools.take_pages(-(-(depth - 1) // PAGE))
            features = self._draws.standard_normal((1, head.n_features), np.float32)
            cache = Snapshot(head.pools, depth - 1, pages, head.pools.empty_slot_copy())
            return _HeadSnapshot(cache, placed_like(features, head.pools.k))
        if isinstance(drafter, DFlash):
            draft = self.model.attachments[drafter]
            state = draft.state(max(depth - draft.reach, 0))
            state.length = depth
            found = state.snapshot()
            state.close()
            return found
        return None


def measure(contexts, strategy, depth, n_sequences, n_steps):
    """Return seconds of the parts of a step, and the tokens that a sequence gets in it."""
    model = contexts.model
    strategy.drafter.prepare(model)
    engine = Engine(model, chunk=model.prefill_chunk)
    sessions = []
    with ExitStack() as running:
        running.callback(lambda: [session.cancel() for session in sessions] and engine.step())
        with ExitStack() as snapshots:
            for _ in range(n_sequences):
                session, snapshot = contexts.session(depth, strategy, n_steps)
                snapshots.callback(snapshot.close)
                sessions.append(engine.add(session))
            while not all(session.n_tokens for session in sessions):
                engine.step()
                _check(sessions)
        for _ in range(SKIPPED):
            engine.step()
        before, took = [len(session.steps) for session in sessions], []
        for _ in range(n_steps):
            start = time.perf_counter()
            engine.step()
            took.append(time.perf_counter() - start)
        _check(sessions)
        steps = [step for session, n in zip(sessions, before, strict=True) for step in session.steps[n:]]
    parts = {part: statistics.median(getattr(step, part) for step in steps) for part in ("propose", "forward")}
    seconds = statistics.median(took)
    return {
        "step_seconds": seconds,
        "quartiles": statistics.quantiles(took, n=4),
        "draft_seconds": parts["propose"],
        "forward_seconds": parts["forward"],
        "host_seconds": seconds - sum(parts.values()),
        "tokens_a_step": sum(len(step.tokens) for step in steps) / len(steps),
        "rows": statistics.median(step.batch for step in steps),
        "steps": n_steps,
    }


def _check(sessions):
    for session in sessions:
        if session.error is not None:
            raise session.error


def run(given):
    """Measure the cells that the file lacks, until the time is over."""
    ends = time.monotonic() + given.seconds
    grid = GRIDS[given.preset]
    cells = [
        (depth, n, *each) for depth, counts in grid.items() for n in counts for each in strategies(given.preset, given.draft)
    ]
    known = {_key(line) for line in _lines(given.out)}
    wanted = [cell for cell in cells if _key(_facts(given, *cell)) not in known]
    if not wanted:
        print(f"{given.out} holds all {len(cells)} cells")
        return
    settings = LoadSettings(
        device=given.device,
        context=max(grid) + 64 * (given.steps + SKIPPED + 4),
        sequences=max(max(counts) for counts in grid.values()),
        kv=given.kv,
        kv_bytes=given.kv_bytes,
    )
    loaded = load_model(given.file, settings)
    contexts = Contexts(loaded.model)
    about = {name: value for name, value in environment().items() if name in ("commit", "cpu", "gpu", "dflash")}
    about["copy_bytes_per_second"] = bandwidth(loaded.model.device, threads=loaded.model.threads)
    with given.out.open("a", encoding="utf-8") as out:
        _end_line(given.out, out)
        for number, cell in enumerate(wanted):
            if time.monotonic() > ends:
                print(f"time is over: {len(wanted) - number} of {len(cells)} cells are left; run the same command again")
                return
            depth, n, name, strategy = cell
            try:
                found = measure(contexts, strategy, depth, n, given.steps)
            except DFlashError as error:
                print(f"{name} {strategy.verifier} {n} x {depth}: {error}", flush=True)
                continue
            out.write(json.dumps({**_facts(given, *cell), **found, **about}) + "\n")
            out.flush()
            print(f"{name} {strategy.verifier} {n} x {depth}: {1e3 * found['step_seconds']:.2f} ms", flush=True)


def _end_line(path, out):
    """End a line that a killed run has left."""
    if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        out.write("\n")


def _facts(given, depth, n, name, strategy):
    """Return what names a cell."""
    length = getattr(strategy.verifier, "length", 1.0)
    source = getattr(strategy.verifier, "source", "plain")
    values = {"file": Path(given.file).name, "kv": given.kv, "context": depth, "sequences": n, "strategy": name}
    return {**values, "acceptance_length": length, "source": source}


def _key(line):
    return tuple(line[name] for name in ("file", "kv", "context", "sequences", "strategy", "acceptance_length", "source"))


def _lines(path):
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def table(lines):
    """Return a Markdown table of one file's cells, in the order of the grid.

    Omega and its parts are in plain steps of the same cell: drafting, wider forward, host.
    """
    plain = {(line["context"], line["sequences"]): line for line in lines if line["strategy"] == "plain"}
    rows = [_HEAD]
    for line in sorted(lines, key=lambda line: (line["context"], line["sequences"])):
        base = plain.get((line["context"], line["sequences"]))
        if base is None:
            continue
        one, step = base["step_seconds"], line["step_seconds"]
        rate = line["tokens_a_step"] / step
        parts = (
            line["draft_seconds"] - base["draft_seconds"],
            line["forward_seconds"] - base["forward_seconds"],
            line["host_seconds"] - base["host_seconds"],
        )
        numbers = (f"{1e3 * step:.2f}", f"{rate:,.1f}", f"{line['sequences'] * rate:,.0f}", f"{rate * one:.2f}")
        omegas = (f"{step / one - 1:.2f}", *(f"{part / one:.2f}" for part in parts))
        place = f"{line['context']:,}", str(line["sequences"]), line["strategy"]
        rows.append((*place, f"{line['tokens_a_step']:.2f}", *numbers, *omegas, line["source"].split(",")[0]))
    body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([body[0], "|" + " --- |" * len(rows[0]), *body[1:]])


def main():
    """Measure, or print a table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--preset", choices=GRIDS, default="27b")
    parser.add_argument("--draft")
    parser.add_argument("--out", type=Path, default=Path("speculation.jsonl"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kv", default="q8_0")
    parser.add_argument("--kv-bytes", type=int)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    if not given.table and not given.file:
        parser.error("a model FILE or --table FILE.jsonl is wanted")
    if missing := [path for path in given.table or () if not path.is_file()]:
        parser.error(f"no such file: {missing[0]}")
    if given.table:
        print("\n\n".join(f"{path.stem}\n\n{table(_lines(path))}" for path in given.table))
    else:
        run(given)


if __name__ == "__main__":
    main()
