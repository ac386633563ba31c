"""Drafters that know the answer, more or less; and plain decoding written down a second time."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter
from dflash.kernels.sample import reference


def naive(toy, prompt, sampling, n, *, seed=0, eos=(), mask=None):
    """Continue a text token by token, from the definitions alone."""
    text = list(prompt)
    while len(text) < len(prompt) + n:
        logits = ruled(toy.after(text), text, len(prompt), sampling)
        if mask is not None:
            logits = mask(logits, text)
        token = drawn(logits, sampling, seed, len(text))
        text.append(token)
        if token in eos:
            break
    return text[len(prompt) :]


def ruled(logits, text, n_prompt, sampling):
    """Penalties and bias, token by token."""
    logits = logits.copy()
    produced = Counter(text[n_prompt:])
    for token in set(text):
        r = np.float32(sampling.repetition_penalty)
        logits[token] = logits[token] / r if logits[token] > 0 else logits[token] * r
        logits[token] -= np.float32(sampling.frequency_penalty) * np.float32(produced[token])
        logits[token] -= np.float32(sampling.presence_penalty) * np.float32(token in produced)
    for token, value in dict(sampling.logit_bias).items():
        logits[token] += np.float32(value)
    return logits


def drawn(logits, sampling, seed, position):
    """Temperature, truncation and noise, each by its definition."""
    if sampling.greedy:
        return int(np.argmax(logits))
    for rule in sampling.after:
        logits = rule(logits, None)
    noise = np.empty(len(logits), np.float32)
    reference.gumbel(seed, position, np.arange(len(logits)), out=noise)
    return int(np.argmax(logits + noise))


@dataclass(frozen=True)
class Oracle(Drafter):
    """Drafts a given text, with random mistakes and forks.

    kind : "right", "wrong", "chain" (each token right with probability `p`) or "tree" (the same, with forks)
    """

    texts: tuple[tuple[int, ...], ...]
    kind: str = "tree"
    p: float = 0.7
    n_vocab: int = 13
    size: int = 12
    greedy_for_room: bool = False

    def start(self, session, model, snapshot=None):
        return _OracleState(self, session)


class _OracleState:
    capture = (3,)

    def __init__(self, drafter, session):
        self.drafter, self.session = drafter, session
        self.seen, self.closed = [], 0
        n = session.n_prompt
        self.truth = next((t for t in drafter.texts if list(t[:n]) == session.token_ids), tuple(session.token_ids))

    def propose(self, max_draft):
        d, start = self.drafter, len(self.session.token_ids)
        rng = np.random.default_rng([start, len(self.truth)])
        n = d.size if d.greedy_for_room else min(max_draft, int(rng.integers(0, d.size + 1)))
        tokens, parents, depths = [], [], []
        for i in range(n):
            parent = int(rng.integers(-1, i)) if d.kind == "tree" and rng.random() < 0.5 else i - 1
            depth = depths[parent] + 1 if parent >= 0 else 0
            right = {"right": True, "wrong": False}.get(d.kind, rng.random() < d.p)
            truth = self.truth[start + depth] if start + depth < len(self.truth) else 0
            tokens.append(truth if right else (truth + 1 + int(rng.integers(d.n_vocab - 1))) % d.n_vocab)
            parents.append(parent)
            depths.append(depth)
        return Draft(tokens, parents)

    def observe(self, step, out, rows):
        assert (out.captured[3][rows] == out.hidden[rows] + 3).all()
        self.seen += [(int(token), int(position)) for token, position in out.hidden[rows]]
        text = self.session.token_ids
        assert self.seen == list(zip(text, range(len(self.seen)), strict=False))
        reading = len(self.seen) < self.session.n_prompt - 1
        assert reading or len(self.seen) in (self.session.n_prompt - 1, len(text) - 1)

    def close(self):
        self.closed += 1
        assert self.closed == 1


@dataclass(frozen=True)
class Remembers(Drafter):
    """Drafts a given continuation as a tree: every other token is wrong, and its right sibling stands beside it."""

    text: tuple[int, ...]
    size: int

    def start(self, session, model, snapshot=None):
        return Remembering(self, session)


class DraftingState:
    """State of a drafter that needs nothing from the model."""

    capture = ()

    def __init__(self, drafter, session):
        self.drafter, self.session = drafter, session

    def observe(self, step, out, rows):
        pass

    def snapshot(self):
        pass

    def close(self):
        pass


class Remembering(DraftingState):
    """State of `Remembers`."""

    capture = (0,)

    def propose(self, max_draft):
        ahead = self.drafter.text[len(self.session.token_ids) :][: min(max_draft, self.drafter.size) // 2]
        tokens, parents, above = [], [], -1
        for i, token in enumerate(ahead):
            tokens += [token ^ 1, token] if i % 2 else [token, token ^ 1]
            parents += [above, above]
            above = len(tokens) - 1 - (i % 2 == 0)
        return Draft(tokens, parents)

    def observe(self, step, out, rows):
        assert bool(np.isfinite(out.captured[0][rows]).all())
        assert out.captured[0][rows].shape[1] == out.hidden.shape[1]
