"""The only place where a token is picked."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.sampling.sampler import TokenLogprobs
from dflash.decode.view import SamplingView
from dflash.errors import DFlashError
from dflash.kernels import sample
from dflash.kernels.sample import SampleResult


class Accepted(NamedTuple):
    """What a step adds to a text.

    Parameters
    ----------
    tokens : list of int
        New tokens, at least one.
    rows : list of int
        One a token: the row of the span that it was picked from, root first. These rows are text now.
    n_accepted : int
        How many of the tokens, from the first on, were guessed.
    logprobs : list of TokenLogprobs
        One a token, if the session wants them.
    finish : str or None
        ``"stop"`` if the last token is an end token, ``"length"`` if the text may not grow further.
    drafted : int
        How many tokens were guessed.
    injected : int
        How many of the tokens, from the first on, were not picked: a recovery put them there.
    """

    tokens: list[int]
    rows: list[int]
    n_accepted: int
    logprobs: list[TokenLogprobs]
    finish: str | None
    drafted: int = 0
    injected: int = 0

    def cut(self, n: int, finish: str | None = None) -> "Accepted":
        """The first `n` tokens, as if the others never were."""
        if not 0 <= n <= len(self.tokens):
            raise DFlashError(f"{len(self.tokens)} tokens were shown, {n!r} of them are to be kept")
        return self._replace(
            tokens=self.tokens[:n],
            rows=self.rows[:n],
            n_accepted=min(self.n_accepted, n),
            logprobs=self.logprobs[:n],
            finish=finish,
            injected=min(self.injected, n),
        )


class Samples(NamedTuple):
    """Tokens drawn at all nodes of a draft: those of its rows, which begin at `first`."""

    result: SampleResult
    first: int


def sample_rows(logits: Any, asking: Sequence[tuple[Draft, SamplingView, int]]) -> list[Samples | None]:
    """Begin to draw the tokens of a step, of all sessions together, where no rule must see the way to a node first.

    Parameters
    ----------
    logits : float32 (R, V), or Logits
        Of the whole forward.
    asking : sequence of (Draft, Session, int)
        Whose rows they are, and which is the first.

    Returns
    -------
    list of Samples or None
        To be handed to `verify`, one each; None where it has to go from row to row.

    Notes
    -----
    Logits on a GPU cost one launch or a few and one copy back for all; penalties and bias are made there, too. On the CPU a
    session with rules is better off node by node.
    """
    edits = not isinstance(logits, np.ndarray)
    requests = [session.sampler.request(draft, session.history, first, edits=edits) for draft, session, first in asking]
    wanted = [request for request in requests if request is not None]
    if not wanted:
        return [None] * len(requests)
    result = sample.sample_rows(logits, wanted)
    return [None if request is None else Samples(result, request.first) for request in requests]


def wait(samples: Sequence[Samples | None]) -> None:
    """Wait for what `sample_rows` has begun."""
    for one in samples:
        if one is not None:
            one.result.wait()
            return


def verify(draft: Draft, logits: Any, session: SamplingView, samples: Samples | None = None) -> Accepted:
    """Walk a draft from the root: pick the target's own token, step to the guess that holds it, or stop.

    Parameters
    ----------
    draft : Draft
        Guesses under the last token of the text; the empty one in plain decoding.
    logits : float32 (1 + N, V), or Logits
        The target's, for the last token of the text and for each guess.
    session : Session
        Its rules see, at every node, the text with that node's own path; it is left as it was. Its `forced` tokens, if there
        are any, come first, whatever the logits say; the draft holds nothing else then.
    samples : Samples, optional
        What `sample_rows` found for it.

    Returns
    -------
    Accepted

    Raises
    ------
    DFlashError
        If a row holds nothing to pick from. What a rule raises passes through.

    Notes
    -----
    Each pick is a function of logits, path, seed and position. So every draft leads to the same tokens as none, as
    long as the logits of a node are those of plain decoding.
    """
    sampler, history, end_tokens = session.sampler, session.history, session.eos
    start, room = len(history), session.max_length - len(history)
    forced, recorder = session.forced_ids, session.recorder
    if samples is None and not sampler.processors:
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
            else:
                token = (
                    sampler.sample(logits[row], history) if samples is None else samples.result.token(samples.first + row)
                )
            if token < 0:
                raise DFlashError(f"no token can follow at position {len(history)}: all logits are NaN or masked")
            tokens.append(token)
            rows.append(row)
            if session.wants_logprobs:
                logprobs.append(_logprobs(session, logits, row, token, None if forced else samples))
            if recorder is not None:
                recorder.picked(row, logits[row], token)
            node = draft.child(node, token) if len(draft) else -1
            accepted += node >= 0 and not forced
            if token in end_tokens:
                finish = "stop"
            elif len(tokens) >= room:
                finish = "length"
            if finish is not None or node < 0:
                injected = min(len(forced), len(tokens))
                return Accepted(tokens, rows, accepted, logprobs, finish, 0 if forced else len(draft), injected)
            history.push(token)
    finally:
        history.cut(start)


def _logprobs(session: SamplingView, logits: Any, row: int, token: int, samples: Samples | None) -> TokenLogprobs:
    if samples is None:
        return session.sampler.logprobs(logits[row], token)
    return TokenLogprobs(token, *samples.result.top(samples.first + row))
