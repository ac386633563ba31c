"""Latency of a step of speculative decoding on a GPU, as a whole and by parts.

python benchmarks/gpu_speculation.py FILE DRAFT [DRAFT ...] [--draft-vocab N] [--mtp]

Prompts are random, so nearly every draft token is rejected; the latency of a step does not depend on that.
The draft vocabulary is the reduced one, as for English and code, unless a line says otherwise.
"""

import argparse
import statistics
import time

import numpy as np

from dflash.decode.drafters import vocab_tracker
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.draft import DraftRequest
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

PROMPT, STEPS, SKIPPED, QUEUED = 300, 60, 10, 6


class Runs:
    """Latencies of one model, in milliseconds."""

    def __init__(self, model, steps):
        self.model, self.n_steps = model, steps
        self._draws = np.random.default_rng(0)

    def ids(self, n):
        """Return `n` random token ids."""
        return self._draws.integers(0, 50_000, n, dtype=np.int32)

    def step(self, strategy, sampling, n_sessions=1):
        """Return the median latency of an engine step with some sequences, and the tokens per step of each sequence."""
        engine, took = Engine(self.model, chunk=self.model.prefill_chunk), []
        most = 16 * (self.n_steps + SKIPPED + 1)
        sessions = [
            engine.add(Session(self.ids(PROMPT).tolist(), sampling=sampling, strategy=strategy, max_tokens=most))
            for _ in range(n_sessions)
        ]
        while len(took) < self.n_steps + SKIPPED:
            start = time.perf_counter()
            engine.step()
            if all(session.n_tokens > 1 for session in sessions):
                took.append(time.perf_counter() - start)
        made = sum(session.n_tokens for session in sessions) / n_sessions / (len(took) + 1)
        for session in sessions:
            if session.error is not None:
                raise session.error
            session.cancel()
        engine.step()
        return 1e3 * statistics.median(took[SKIPPED:]), made

    def forward(self, n, capture):
        """Return the latency of a forward of `n` rows; several are queued, so that host time is hidden."""
        state, tokens = self.model.state(), self.ids(n)
        parents = np.arange(-1, n - 1, dtype=np.int32)

        def run():
            self.model.forward([Span(state, tokens, parents)], capture=capture)
            state.commit([])

        took = self._queued(run)
        state.close()
        return took

    def draft(self, draft, nodes, *, common):
        """Return the latency of a draft for one sequence, and of reading 1 and 16 rows of features."""
        target, state = self.model.state(), draft.state()
        tokens = self.ids(PROMPT)
        span = Span(target, tokens, np.arange(-1, PROMPT - 1, dtype=np.int32), prefill=True, logits=False)
        features = self.model.forward([span], capture=draft.config.target_layer_ids).captured
        draft.read(state, features, slice(0, PROMPT))
        wishes = [
            DraftRequest(state, -1, n := draft.config.max_draft, SampleParams(), 1 if nodes == n else 16, common, nodes)
        ]
        draft_ms = self._queued(lambda: draft.draft_on_device(wishes, [7]))
        read = [self._queued(lambda n=n: draft.read(state, features, slice(0, n))) for n in (1, 16)]
        state.close()
        target.close()
        return draft_ms, *read

    def _queued(self, run):
        took = []
        for _ in range(5):
            self.model.finish()
            start = time.perf_counter()
            for _ in range(QUEUED):
                run()
            self.model.finish()
            took.append((time.perf_counter() - start) / QUEUED)
        return 1e3 * min(took[1:])


def main():
    """Print one result per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("drafts", nargs="*")
    parser.add_argument("--mtp", action="store_true", help="the file has an MTP head")
    parser.add_argument(
        "--draft-vocab", type=int, metavar="N", help="measure each draft also with a draft vocabulary of the first N tokens"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    model = load_model(given.file, LoadSettings(device="cuda", context=8192, sequences=4)).model
    runs = Runs(model, given.steps)
    greedy, drawn = Sampling(), Sampling(temperature=1.0, seed=1)
    plain, _ = runs.step(Plain(), greedy)
    print(f"a plain step: {plain:.3f} ms")

    def tell(name, strategy, sampling=greedy, n_sessions=1, *, common=True):
        # what is written are tokens of all languages, as the weights are random
        vocab_tracker.FEW = vocab_tracker.RECENT if common else -1
        took, made = runs.step(strategy, sampling, n_sessions)
        print(f"{name}: {took:.3f} ms, {took / plain:.3f} plain steps ({made:.2f} tokens per step)", flush=True)

    for path in given.drafts:
        drafter = DFlash(path)
        drafter.prepare(model)
        draft = model.attachments[drafter]
        print(f"{path}: {draft.weights.n_bytes / 1e9:.2f} GB")
        tell("  chain of 15", Strategy(drafter, Chain()))
        tell("  chain of 15, full draft vocabulary", Strategy(drafter, Chain()), common=False)
        tell("  chain of 15, sampled", Strategy(drafter, Chain()), drawn)
        tell("  tree of 22", Strategy(drafter, Tree(22)))
        tell("  tree of 22, full draft vocabulary", Strategy(drafter, Tree(22)), common=False)
        tell("  tree of 22, sampled", Strategy(drafter, Tree(22)), drawn)
        tell("  four chains of 15", Strategy(drafter, Chain()), n_sessions=4)
        for name, nodes in (("chain of 15", draft.config.max_draft), ("tree of 22", 22)):
            draft_ms, one, many = runs.draft(draft, nodes, common=0 if draft.draft_vocabs else None)
            every, _, _ = runs.draft(draft, nodes, common=None)
            forward = runs.forward(nodes + 1, draft.config.target_layer_ids)
            print(f"  {name}: draft {draft_ms:.3f} ms, {every:.3f} with the full draft vocabulary")
            print(f"  {name}: reading 1 / 16 rows {one:.3f} / {many:.3f}, forward {forward:.3f} ms")
        model.can_overlap = False
        tell("  chain of 15, steps not overlapped", Strategy(drafter, Chain()))
        model.can_overlap = True
        if given.draft_vocab:
            fewer = DFlash(path, draft_vocab=given.draft_vocab)
            tell(f"  chain of 15, from {given.draft_vocab:,} tokens", Strategy(fewer, Chain()))
            tell(f"  tree of 22, from {given.draft_vocab:,} tokens", Strategy(fewer, Tree(22)))
        tell("  plain again", Plain())
    if given.mtp:
        tell("MTP chain of 3", Strategy(MTP(), Chain(3)))
        tell("MTP chain of 3, full draft vocabulary", Strategy(MTP(), Chain(3)), common=False)
        tell("MTP chain of 3, sampled", Strategy(MTP(), Chain(3)), drawn)


if __name__ == "__main__":
    main()
