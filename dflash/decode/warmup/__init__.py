"""Compile kernels and capture graphs of a model before the first request."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any

import numpy as np

from dflash.decode.drafting.shapes import Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.kernels import sample
from dflash.kernels.cpu import warm_marker
from dflash.kernels.cpu.dry_run import Job, parts_of
from dflash.kernels.lookup import Index
from dflash.kernels.sample import cpu as sampling
from dflash.kernels.sample.top_k import top_k
from dflash.kernels.sample.top_p import nucleus
from dflash.kernels.tree.cpu import grow
from dflash.model.batch import Span
from dflash.model.candidates import Candidates
from dflash.model.model import Model
from dflash.model.protocols.target import TargetModel

_ALL_THREADS = 1 << 18
"""Array size from which every op runs in several threads, with a kernel of its own."""

_DRAFTS = "drafts on the host"

_WAYS = (
    Sampling(logprobs=1),
    Sampling(temperature=1.0, seed=0),
    Sampling(temperature=1.0, top_k=2, seed=0),
    Sampling(temperature=1.0, top_p=0.5, min_p=0.1, seed=0),
)


_DRAFT_ROWS = 8, 16, 24, 32, 48, 64
"""Rows of forwards with drafts that are measured on a GPU at the start; more of them take several passes."""

_DRAFT_LENGTH = 4
"""Rows of each sequence there: the delta rule of many sequences takes longer than that of one with as many rows."""

_SINGLE_ROWS = 1, 8, 16, 24, 32, 48, 64, 96, 128
"""Sequences of one row each that are measured there."""


def warm(engine: Engine, kind: str, tell: Callable[[str], None]) -> None:
    """Decode a few tokens; at the first start of a kind of model on a machine, with each sampling that has own kernels.

    GPU kernels are compiled while a model is loaded; there, graphs are captured instead. While other processes compile
    kernels of a model, it decodes greedily only.
    """
    if isinstance(engine.model, Model) and not engine.model.compiled.is_set():
        tell("first forward")
        _write(engine, 2, Sampling())
        return
    if not warm_marker.is_known(_DRAFTS):
        tell("compiling drafts")
        _compile_drafts()
        warm_marker.remember(_DRAFTS)
    tell("first forward")
    _write(engine, 2, Sampling())
    if engine.model.device == "cuda":
        tell("graphs")
        engine.model.warm()
        _learn_forwards(engine)
        _learn_prompts(engine)
        return
    if warm_marker.is_known(kind):
        return
    rows = prefill_lengths(engine.model, engine.chunk)[-1]
    for number, way in enumerate(_WAYS):
        tell("first forwards")
        _write(engine, 24 if number else rows + 1, way)
    warm_marker.remember(kind)


def prefill_lengths(model: TargetModel, chunk: int) -> tuple[int, int]:
    """Return lengths of prompts that need all kernels for prompts: those of one thread, and those of all threads."""
    return 1, min(chunk, _ALL_THREADS // model.config.width + 1, model.config.context - 2)


def decoding_jobs() -> list[Job]:
    """Return the kernels that choose tokens and make drafts; compiling one runs it."""
    row, ids = np.zeros(64, np.float32), np.zeros(64, np.int32)
    calls: tuple[tuple[Any, Callable[[], object]], ...] = (
        (sampling.argmax_row, lambda: sampling.argmax_row(row)),
        (sampling.log_sum_exp, lambda: sample.log_sum_exp(row)),
        (top_k, lambda: sample.top_k(row, ids=ids[:2].copy(), values=np.empty(2, np.float32))),
        (sampling.sample, lambda: sample.sample(row, 1.0, 0, 0)),
        (sampling.likely, lambda: sample.likely(row, 1.0, -1.0, ids=ids.copy(), scaled=row.copy())),
        (nucleus, lambda: sample.nucleus(ids.copy(), row.copy(), 0.5)),
        (sampling.sample_among, lambda: sample.sample_among(ids.copy(), row.copy(), 0, 0)),
        (grow, _compile_drafts),
    )
    return [Job(kernel.__qualname__, parts_of(getattr(kernel, "py_func", kernel)), call) for kernel, call in calls]


def _compile_drafts() -> None:
    """Compile the kernels that make drafts on the host: the first request that uses them would stop all others."""
    index = Index(shortest=2, longest=3)
    index.append([1, 2, 3, 1, 2])
    index.match()
    scores = np.log(np.array([[0.5, 0.25], [0.5, 0.25]], np.float32))
    ids, edges = np.array([[1, 2], [3, 4]], np.int32), np.repeat(scores[:, None], 2, axis=1)
    for found in (Candidates(ids, scores), Candidates(ids, scores, edges)):
        Tree(3).draft(found, 3)


def _learn_prompts(engine: Engine) -> None:
    """Read a prompt beside a text that is written: else the first prompts beside others would be read in small pieces."""
    most = engine.model.config.context - 2
    if engine.prompt_share is None or engine.max_active < 2:
        return
    writing = Session([0], max_tokens=min(16, most), use_prefix_cache=False)
    reading = Session([0] * min(3 * engine.chunk // 2, most), max_tokens=1, use_prefix_cache=False)
    list(engine.run([writing, reading]))


def _learn_forwards(engine: Engine) -> None:
    """Measure forwards of all sizes: else the first steps of each load would be chosen without knowing what rows cost."""
    model, pools = engine.model, engine.model.pools
    n_states = min(_SINGLE_ROWS[-1], engine.max_active, pools.free_pages, pools.free_slots)
    most = model.config.pending
    with ExitStack() as stack:
        states = [stack.enter_context(closing(model.state())) for _ in range(n_states)]
        counts = ((rows, min(-(-rows // min(most, _DRAFT_LENGTH)), n_states)) for rows in _DRAFT_ROWS)
        sizes = [(rows, n) for rows, n in counts if rows <= n * most]
        for rows, n in (*sizes, *((rows, rows) for rows in _SINGLE_ROWS if rows <= n_states)):
            for turn in range(4):
                for state in states[:n]:
                    state.reserve(most)
                began = perf_counter()
                model.forward([Span.chain(state, [0] * (rows // n + (i < rows % n))) for i, state in enumerate(states[:n])])
                model.finish()
                seconds = perf_counter() - began
                for state in states[:n]:
                    state.commit([0])
                if turn and engine.draft_budget is not None:
                    engine.draft_budget.costs.observe(rows, (), seconds, single=n == rows)
                if turn and n == rows and engine.prompt_share is not None:
                    engine.prompt_share.learn_decode(rows, seconds)


def _write(engine: Engine, n_prompt: int, sampling: Sampling) -> None:
    list(engine.stream(Session([0] * n_prompt, sampling=sampling, max_tokens=2, use_prefix_cache=False)))
