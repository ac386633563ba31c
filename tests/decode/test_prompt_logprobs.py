"""Log-probabilities of prompt tokens: those of the model's own logits, whatever decodes beside them."""

import numpy as np
import pytest
from oracles import Oracle, naive
from toy import Toy

from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.sampling.params import Sampling
from dflash.decode.scheduling import prompt_scores
from dflash.decode.session import Session
from dflash.errors import PoolExhausted, RequestError

PROMPT = [7, 7, 2, 11, 3, 3, 9, 1]


def defined(toy, prompt, n):
    """Each token's log-probability and rank, and the likeliest tokens, from the definitions alone."""
    found = []
    for end in range(1, len(prompt)):
        logits = toy.after(prompt[:end]).astype(np.float64)
        logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        order = np.argsort(-logits, kind="stable")
        token = prompt[end]
        found.append(
            (token, logprobs[token], [(i, logprobs[i]) for i in order[:n].tolist()], order.tolist().index(token) + 1)
        )
    return found


def check(session, toy, n):
    want = defined(toy, session.prompt_ids, n)
    assert [entry.token for entry in session.scored_prompt] == [token for token, *_ in want]
    for entry, (_, logprob, top, rank) in zip(session.scored_prompt, want, strict=True):
        assert entry.logprob == pytest.approx(logprob, abs=1e-5)
        assert [token for token, _ in entry.top] == [token for token, _ in top]
        assert [value for _, value in entry.top] == pytest.approx([value for _, value in top], abs=1e-5)
        assert entry.rank == rank


def all_of(engine, sessions):
    list(engine.run(sessions))


@pytest.mark.parametrize("chunk", [1, 3, 512])
@pytest.mark.parametrize("max_tokens", [0, 1, 9])
def test_they_are_those_of_the_definition(chunk, max_tokens):
    toy = Toy()
    session = Session(PROMPT, max_tokens=max_tokens, prompt_logprobs=3)
    all_of(Engine(toy, chunk=chunk), [session])
    check(session, toy, 3)
    assert session.output_ids == naive(toy, PROMPT, Sampling(), max_tokens)
    assert session.finish_reason == "length"
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize("kind", ["right", "tree"])
def test_a_batch_and_drafts_change_nothing(kind):
    toy, others = Toy(), [[5] * 20, [1, 2], [4]]
    truth = naive(toy, PROMPT, Sampling(), 12)
    strategy = Strategy(Oracle(((*PROMPT, *truth),), kind, size=4))
    sessions = [Session(PROMPT, max_tokens=12, strategy=strategy, prompt_logprobs=2) for _ in range(2)]
    scored = [Session(prompt, max_tokens=0, prompt_logprobs=0) for prompt in others]
    plain = [Session(prompt, max_tokens=12) for prompt in others]
    all_of(Engine(toy, chunk=4), [plain[0], scored[0], sessions[0], *plain[1:], sessions[1], *scored[1:]])
    for session in sessions:
        check(session, toy, 2)
        assert session.output_ids == truth
    for session in scored:
        check(session, toy, 0)
        assert not session.output_ids
    assert [session.output_ids for session in plain] == [naive(toy, prompt, Sampling(), 12) for prompt in others]
    assert toy.leaked == (0, 0, 0)


def test_rows_with_logits_are_bounded(monkeypatch):
    """A chunk holds as many tokens of scored prompts as fit the limit, over all of them, and more of other prompts."""
    toy = Toy()
    monkeypatch.setattr(prompt_scores, "MAX_ROWS", 3)
    scored = [Session([1 + i] * 20, max_tokens=0, prompt_logprobs=1) for i in range(2)]
    rows = []
    toy.before_forward = lambda spans: rows.append([(len(span.tokens), span.logits) for span in spans if span.prefill])
    all_of(Engine(toy, chunk=32), [*scored, Session([9] * 40, max_tokens=1)])
    assert max(sum(n for n, has_logits in spans if has_logits) for spans in rows) == 3
    assert max(sum(n for n, _ in spans) for spans in rows) == 32
    for session in scored:
        check(session, toy, 1)


def test_the_prefix_cache_is_not_used():
    """A saved prefix has no log-probabilities."""
    toy = Toy()
    engine = Engine(toy, prefix_cache=PrefixCache(10**6, 100, min_gain=1))
    for _ in range(2):
        session = Session(PROMPT, max_tokens=2, prompt_logprobs=1)
        all_of(engine, [Session(PROMPT, max_tokens=2), session])
        check(session, toy, 1)
        assert session.n_cached == 0
    engine.close()


def test_a_wrong_number_is_refused():
    with pytest.raises(RequestError, match="prompt_logprobs"):
        Session(PROMPT, prompt_logprobs=-1)


def test_a_prompt_beyond_memory_is_refused():
    toy = Toy(pages=1)
    with pytest.raises(PoolExhausted, match="1000 tokens"):
        Engine(toy).add(Session([1] * 1000, max_tokens=0, prompt_logprobs=1))


@pytest.mark.parametrize(
    "strategy", [Plain(), Strategy(Oracle(((*PROMPT, 1, 2, 3),), "right", size=3))], ids=["plain", "drafts"]
)
def test_a_stop_id_ends_the_session_in_place_of_end_tokens(strategy):
    toy = Toy()
    truth = naive(toy, PROMPT, Sampling(), 20)
    stop = next(i for i in range(3, 20) if truth[i] not in truth[:i])
    session = Session(PROMPT, max_tokens=20, strategy=strategy, eos=truth[:2], stop_ids=[truth[stop]])
    all_of(Engine(toy), [session])
    assert session.output_ids == truth[: stop + 1]
    assert (session.finish_reason, session.stop_token) == ("stop", truth[stop])
