"""Compile kernels that a model needs into the cache on disk: run by `compile_ahead` as a process of its own.

Its argument is a JSON object: the arguments of `jobs_of`, and of `main`. Several of these processes share the work by files
in a folder. Each writes the sizes of all kernels to stdout first, those of the first tokens and those of the others, and
then a line for each kernel of its own: its number, and 0 if the cache had it. It goes on if nobody reads them anymore.
"""

import contextlib
import gc
import importlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash.decode.warmup import decoding_jobs, prefill_lengths
from dflash.kernels.compiling import count
from dflash.kernels.cpu import warm_marker
from dflash.kernels.cpu.dry_run import Job, dry_run, grouped
from dflash.model.batch import Span
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import CHUNK, Model

_CONTEXT = 2048
"""Tokens of the sequence of the dry run; types do not depend on it, memory does."""

_BESIDE = 10
"""Added to the niceness once the first tokens have their kernels: the model then runs on the same cores."""


def jobs_of(path: str, *, kv: str, pending: int, threads: int) -> tuple[list[Job], list[Job]]:
    """Return the kernels that a model needs on the CPU for its first tokens, and the others."""
    with GGUFFile.open(path) as file:
        config = Config.from_gguf(file.metadata, file.tensors, pending=pending)
        config = replace(config, context=min(config.context, _CONTEXT))
        with dry_run() as found:
            model = Model(file, config, pages=_CONTEXT // 256 + 1, slots=2, kv=kv, threads=threads, rows=CHUNK + pending)
            for compiled in (threading.Event(), model.compiled):
                model.compiled = compiled
                for n in prefill_lengths(model, model.prefill_chunk):
                    _forwards(model, n)
                if not compiled.is_set():
                    n_first = len(found)
        jobs, (greedy, *others) = list(found.values()), decoding_jobs()
        return [*jobs[:n_first], greedy], [*jobs[n_first:], *others]


def _forwards(model: Model, n: int) -> None:
    """Read a prompt of `n` tokens and two more tokens."""
    state = model.state()
    state.reserve(n + 2)
    model.forward([Span.chain(state, [0] * n, prefill=True, logits=False)])
    for _ in range(2):
        model.forward([Span.chain(state, [0])])
        state.commit([0])
    state.close()


def main(*, claims: str, processes: int, kind: str, modules: Sequence[str] = (), **model: Any) -> None:
    """Compile what other processes do not; the last of `processes` records that all kernels of a kind are compiled.

    claims: folder in which a file stands for a group of kernels that a process compiles, or for one that has ended.
    modules: names of modules that define formats, feed forwards and ops; importing them registers those of a plugin.
    **model: arguments of `jobs_of`.
    """
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    both = [grouped(jobs) for jobs in jobs_of(**model)]
    _tell(json.dumps([[size for group in groups for _, size in group] for groups in both]))
    first = 0
    for groups in both:
        for group in groups:
            if _claimed(Path(claims, str(first))):
                for number, (job, _) in enumerate(group, first):
                    before = count().done
                    job.compile()
                    _tell(f"{number} {count().done - before}")
            first += len(group)
        if hasattr(os, "nice") and groups is both[0]:
            os.nice(_BESIDE)
    if _claimed(Path(claims, f"ended {os.getpid()}")) and len(list(Path(claims).glob("ended *"))) == processes:
        warm_marker.remember(kind)
        shutil.rmtree(claims, ignore_errors=True)


def _claimed(path: Path) -> bool:
    """Create a file; return False if there is one, or no folder, since this model was closed by an error."""
    try:
        path.touch(exist_ok=False)
    except (FileExistsError, FileNotFoundError):
        return False
    return True


def _tell(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
