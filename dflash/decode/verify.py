"""Verification: the only place where a token is picked."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.sampling.sampler import TokenLogprobs
from dflash.decode.verifiers.base import Taken
from dflash.decode.verifiers.path import DraftPath
from dflash.decode.view import SamplingView
from dflash.errors import DFlashError
from dflash.kernels import sample
from dflash.kernels.sample import NO_MASKS, SampleRequest, SampleResult
from dflash.kernels.sample.cuda_logits import LogitRows


class Accepted(NamedTuple):
    """Tokens that a step appends to a sequence.

    tokens: new ids, at least one as `verify` returns them: accepted draft tokens, then the bonus token.
    rows: for each token the row of the span that it was picked from, root first. These rows are committed.
    logprobs: one for each token, if the session wants them.
    finish: ``"stop"`` if the last token is an end token, ``"length"`` if the sequence may not grow further.
    injected: number of tokens, from the first on, that a recovery injected.
    """

    tokens: list[int]
    rows: list[int]
    n_accepted: int
    logprobs: list[TokenLogprobs]
    finish: str | None
    drafted: int = 0
    injected: int = 0

    def cut(self, n: int, finish: str | None = None) -> "Accepted":
        """Return the first `n` tokens with another reason to finish."""
        if not 0 <= n <= len(self.tokens):
            raise DFlashError(f"accepted tokens: wanted 0 to {len(self.tokens)} of them, got {n!r}")
        return self._replace(
            tokens=self.tokens[:n],
            rows=self.rows[:n],
            n_accepted=min(self.n_accepted, n),
            logprobs=self.logprobs[:n],
            finish=finish,
            injected=min(self.injected, n),
        )


class Samples(NamedTuple):
    """Tokens sampled at all nodes of a draft; its rows in `result` begin at `first`."""

    result: SampleResult
    first: int


def sample_rows(logits: LogitRows, requests: Sequence[tuple[Draft, SamplingView, int]]) -> list[Samples | None]:
    """Start sampling the tokens of a step for all sessions together, where no processor needs the path to a node.

    logits: float32 (R, V), or Logits; of the whole forward.
    Returns: for `verify`, one for each session; None if its tokens must be picked row by row.

    On a GPU, all sessions need few launches and one copy back, including penalties, bias and the masks of grammars. The
    masks are computed here, while the device runs the forward. On the CPU, a session with processors or masks is faster
    node by node.
    """
    sample_requests = [_request(logits, *each) for each in requests]
    wanted = [request for request in sample_requests if request is not None]
    result = sample.sample_rows(logits, wanted) if wanted else None
    if result is None:
        return [None] * len(requests)
    return [None if request is None else Samples(result, request.first) for request in sample_requests]


def _request(logits: LogitRows, draft: Draft, session: SamplingView, first: int) -> SampleRequest | None:
    """Return the request of a session, None if its tokens must be picked row by row."""
    grammar, on_device, masks = session.grammar, not isinstance(logits, np.ndarray), NO_MASKS
    if grammar is not None and on_device:
        prepared = grammar.prepare(draft, logits.shape[1])
        if prepared is None:
            return None
        masks = prepared
    elif grammar is not None and grammar.constrains(draft):
        return None
    return session.sampler.request(draft, session.history, first, edits=on_device, masks=masks)


def wait(samples: Sequence[Samples | None]) -> None:
    """Wait until the tokens of `sample_rows` have reached the host."""
    for one in samples:
        if one is not None:
            one.result.wait()
            return


def verify(draft: Draft, logits: LogitRows, session: SamplingView, samples: Samples | None = None) -> Accepted:
    """Walk a draft from the root: pick the target's token and step to the draft token that equals it, until there is none.

    draft: draft tokens under the last token of the sequence; empty in plain decoding.
    logits: float32 (1 + N, V), or Logits; the target's logits for the last token of the sequence and for each draft token.
    session: its processors and its grammar see at every node the history with that node's path. The history is restored
        afterwards. Ids of `forced_ids` are taken first, whatever the logits; the draft then holds only these.

    Each pick is a function of logits, path, seed and position. So every draft gives the same tokens as plain decoding, as
    long as the logits of a node are equal; the walk ends early where masks of a grammar take too long. A verifier other
    than `Coupled` decides about the draft before the walk, which then takes its tokens.
    """
    sampler, history, end_tokens = session.sampler, session.history, session.stop_ids
    start, room = len(history), session.max_length - len(history)
    forced, recorder, grammar = session.forced_ids, session.recorder, session.grammar
    taken = None if forced else _taken(draft, logits, session)
    if samples is None and not sampler.processors and grammar is None:
        samples = sample_rows(logits, [(draft, session, 0)])[0]
    tokens: list[int] = []
    rows: list[int] = []
    logprobs: list[TokenLogprobs] = []
    accepted, node, finish = 0, -1, None
    try:
        while True:
            row = node + 1
            if len(tokens) < len(forced):
                token = forced[len(tokens)]
            elif taken is not None and len(tokens) < len(taken.tokens):
                token = taken.tokens[len(tokens)]
            elif taken is not None and taken.last is not None:
                token = taken.last
            elif samples is not None:
                token = samples.result.token(samples.first + row)
            else:
                token = sampler.sample(logits[row], history, None if grammar is None else grammar.mask(row))
            if token < 0:
                raise DFlashError(f"no token can follow at position {len(history)}: all logits are NaN or masked")
            tokens.append(token)
            rows.append(row)
            if session.wants_logprobs:
                logprobs.append(_logprobs(session, logits, row, token, None if forced or taken is not None else samples))
            if recorder is not None:
                recorder.picked(row, logits[row], token)
            ends = taken is not None and len(tokens) > len(taken.tokens)
            node = -1 if ends or not len(draft) else draft.child(node, token)
            if grammar is not None and not forced and not grammar.affords(node + 1):
                node = -1
            accepted += node >= 0 and not forced
            if token in end_tokens:
                finish = "stop"
            elif len(tokens) >= room:
                finish = "length"
            if finish is not None or node < 0:
                if grammar is not None:
                    grammar.check(token, len(history))
                injected = min(len(forced), len(tokens))
                return Accepted(tokens, rows, accepted, logprobs, finish, 0 if forced else len(draft), injected)
            history.push(token)
    finally:
        history.cut(start)
        if grammar is not None:
            grammar.forget()


def _taken(draft: Draft, logits: LogitRows, session: SamplingView) -> Taken | None:
    """Return the decision of the session's verifier about a draft; None if the walk decides."""
    if session.verifier is None or not len(draft):
        return None
    start = len(session.history)
    try:
        return session.verifier.take(draft, DraftPath(draft, logits, session))
    finally:
        session.history.cut(start)


def _logprobs(session: SamplingView, logits: LogitRows, row: int, token: int, samples: Samples | None) -> TokenLogprobs:
    if samples is None:
        found = session.sampler.logprobs(logits[row], token)
        assert found is not None, "the session wants log-probabilities"
        return found
    return TokenLogprobs(token, *samples.result.top(samples.first + row))
