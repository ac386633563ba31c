"""A 27B on an H200 as far as scheduling sees it: a clock, a device that works behind the host, and what passes cost.

Costs are those of `benchmarks/results` (server.md, gpu-kernels.md, drafts-under-load.md), in milliseconds.
"""

from dataclasses import dataclass

import numpy as np
from ahead_toy import AheadState, AheadToy

from dflash.decode import engine as engine_module
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, Plain
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.decode.verify import verify as verify_tokens
from dflash.generation.load import MAX_STEP_MS
from dflash.model.batch import Forward

ROWS, STEP_MS = [1, 8, 16, 32, 64, 96, 128], [5.06, 5.9, 6.5, 9.5, 16.6, 24.0, 31.5]
"""Decode passes of short sequences by rows; those of more than 64 rows hold one for each sequence."""

DEPTH_MS = 3.5e-5
"""Attention of a decoding row, for each position before it."""

TOKENS, PROMPT_MS = [0, 40, 64, 128, 256, 512, 896, 1024, 2048, 4096], [0, 26, 26, 28.2, 36.5, 63, 108, 122, 212, 415]
"""Prefill passes by prompt tokens, while one follows another: at the power cap, some 5 % above a single one."""

BUCKETS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
PROMPTS = 16
"""Most prompts in a pass."""

HEAD_MS, READ_MS, READ_TOKEN_MS = 0.28, 0.1, 0.0005
"""A pass of an MTP head that drafts, one that only reads (estimated), and each token that it reads."""

CAPTURE_MS = 10.0
"""A graph that is captured at its first use."""

HEAD_SEQUENCES = 16
"""Most sequences in a pass of a head that drafts."""

ARRIVAL_MS = 1.0
"""Between two requests that were sent together: the server parses them one after another."""

HOST_MS, HOST_TOKEN_MS = 0.3, 0.03
"""Python of a launch, and of a session's tokens in a step."""


class SimulatedGpu(AheadToy):
    """Forwards that compute nothing and take the device's time."""

    device, chunk_alignment, most_overlapped = "cuda", 64, 128

    def __init__(self, sequences, *, context=40_000, seed=0, spread=0.01):
        super().__init__(
            pages=400 + 64 * sequences, slots=sequences, rows=4096 + 16 * sequences, context=context, pending=16
        )
        self.chunk_alignment = 64
        self.now = self.free = self.ready = self.next_ready = 0.0
        self.rng, self.spread, self.captured, self.steps = np.random.default_rng(seed), spread, set(), []

    def work(self, ms):
        """Queue work on the device, and return when it is done."""
        self.free = max(self.now, self.free) + 1e-3 * ms * (1 + self.spread * self.rng.standard_normal())
        return self.free

    def capture_graph(self, key):
        if key not in self.captured:
            self.captured.add(key)
            self.now = max(self.now, self.free) + 1e-3 * CAPTURE_MS

    def decode_ms(self, spans):
        sizes = [len(span.tokens) for span in spans]
        rows, most = sum(sizes), 128 if max(sizes) == 1 else 64
        passes = [most] * (rows // most) + [rows % most] * (rows % most > 0)
        buckets = [next(bucket for bucket in BUCKETS if bucket >= n) for n in passes]
        for bucket in buckets:
            self.capture_graph(("target", bucket, len(sizes) == 1, max(sizes) == 1))
        depth = sum(len(span.tokens) * span.state.length for span in spans)
        return np.interp(buckets, ROWS, STEP_MS).sum() + DEPTH_MS * depth

    def prompt_ms(self, spans):
        passes = [(0, 0)]
        for span in spans:
            n, tokens = passes[-1]
            if n == PROMPTS or tokens + len(span.tokens) > 4096:
                passes.append((0, 0))
                n, tokens = passes[-1]
            passes[-1] = n + 1, tokens + len(span.tokens)
        depth = sum(len(span.tokens) * span.state.length for span in spans)
        return sum(np.interp(tokens, TOKENS, PROMPT_MS) for _, tokens in passes) + 6e-7 * depth

    def _read(self, spans):
        decoding, prompts = ([span for span in spans if span.prefill is kind] for kind in (False, True))
        done = self.free
        if decoding:
            done = self.work(self.decode_ms(decoding))
        if prompts:
            self.work(self.prompt_ms(prompts))
        self.forwards.append((len(decoding), *(sum(len(span.tokens) for span in part) for part in (decoding, prompts))))
        for span in spans:
            state = span.state
            state.rows = [(token, b"", parent) for token, parent in zip(span.tokens, span.parents, strict=True)]
            if span.prefill:
                state.text.extend(span.tokens)
                state.rows = None
        n = sum(len(span.tokens) for span in spans if span.logits)
        rows = sum(len(span.tokens) for span in spans)
        return done, Forward(np.zeros((n, self.n_vocab), np.float32), np.zeros((rows, 2), np.float32), {}, tuple(spans))

    def forward(self, spans, *, capture=()):
        self.host(HOST_MS)
        done, self.latest = self._read(spans)
        if any(not span.prefill for span in spans):
            self.ready = done
        return self.latest

    def forward_before(self, spans, *, capture=()):
        return self.forward(spans)

    def forward_behind(self, spans, *, capture=()):
        return self._read(spans)[1]

    def forward_overlapped(self, spans, *, capture=()):
        self.host(HOST_MS)
        for span in spans:
            span.state.next_rows = [(0, b"", -1)]
        self.next_ready = self.work(self.decode_ms(spans))
        self.forwards.append((len(spans), len(spans), 0))
        logits = np.zeros((len(spans), self.n_vocab), np.float32)
        self.latest = Forward(logits, np.zeros((len(spans), 2), np.float32), {}, tuple(spans))
        return self.latest

    def state(self):
        return AheadState(self.pools)

    def warm(self):
        self.captured = {("target", rows, True, single) for rows in BUCKETS for single in (False, True)}

    def finish(self):
        self.now = max(self.now, self.free)

    def wait(self, samples):
        """Wait for the tokens of a step."""
        if samples:
            self.now = max(self.now, self.ready)
        self.ready = self.next_ready

    def host(self, ms):
        """Compute on the host."""
        self.now += 1e-3 * ms


@dataclass(frozen=True)
class Head(Drafter):
    """An MTP head: reads prompts and accepted tokens, drafts zeros, a pass for each position."""

    gpu: SimulatedGpu
    most: int = 3

    def start(self, session, model, snapshot=None):
        self.gpu.captured |= {("head", 1, depth) for depth in range(1, self.most + 1)}  # when it was loaded
        return _HeadState()

    def propose(self, drafter_states, max_drafts):
        sizes = [min(self.most, n) for n in max_drafts]
        if depth := next(level for level in (0, 1, self.most) if level >= max(sizes)):
            self.gpu.capture_graph(("head", min(len(sizes), HEAD_SEQUENCES).bit_length(), depth))
            passes = -(-len(sizes) // HEAD_SEQUENCES)
            self.gpu.work(HEAD_MS * depth * passes + READ_TOKEN_MS * sum(state.take() for state in drafter_states))
        return [Draft([0] * n) for n in sizes]

    def end_step(self, drafter_states):
        n = sum(state.take() for state in drafter_states if state.unread > 16)
        if n:
            self.gpu.work(READ_MS + READ_TOKEN_MS * n)


class _HeadState:
    capture = ()

    def __init__(self):
        self.unread = 0

    def observe(self, step, out, rows):
        self.unread += step.prefilled if isinstance(rows, slice) else len(rows)

    def take(self):
        n, self.unread = self.unread, 0
        return n

    def snapshot(self):
        return None

    def close(self):
        pass


def install(monkeypatch, gpu):
    """Let the engine read the clock of a simulated GPU, and wait for it; tokens take time of the host."""

    def verify(*arguments):
        gpu.host(HOST_TOKEN_MS)
        return verify_tokens(*arguments)

    monkeypatch.setattr(engine_module, "verify", verify)
    monkeypatch.setattr(engine_module, "perf_counter", lambda: gpu.now)
    monkeypatch.setattr(engine_module, "wait", gpu.wait)


def server(gpu, **arguments):
    """Return an engine as a server makes it."""
    return Engine(gpu, chunk=4096, max_step=MAX_STEP_MS["cuda"] / 1e3, **arguments)


def together(engine, n, n_prompt, n_output, strategy=None, *, arrival_ms=ARRIVAL_MS):
    """Run `n` requests that were sent at once; return tokens a second, their first tokens and gaps in seconds, the steps."""
    gpu = engine.model
    began = gpu.now
    waiting = [
        (
            began + 1e-3 * arrival_ms * (1 + i),
            Session([i % 13] * n_prompt, max_tokens=n_output, strategy=strategy or Plain()),
        )
        for i in range(n)
    ]
    times, steps = {session: [] for _, session in waiting}, []
    while waiting or engine.busy:
        if not engine.busy:
            gpu.now = max(gpu.now, waiting[0][0])
        while waiting and waiting[0][0] <= gpu.now:
            engine.add(waiting.pop(0)[1])
        at = gpu.now
        for event in engine.step():
            if event.step.tokens:
                times[event.session].append(gpu.now)
        steps.append((gpu.now - at, gpu.forwards[-1]))
    gpu.finish()
    first = np.array([each[0] - began for each in times.values()])
    gaps = np.concatenate([np.diff(each) for each in times.values()])
    return n * n_output / (gpu.now - began), first, gaps, steps
