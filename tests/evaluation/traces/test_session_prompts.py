"""Prompts of a session: equal blocks, the model's own answer, and filler of ordinary tokens."""

import random

import pytest
from traces import BLOCK, trace, traced, write

from dflash.decode.shared_prefix import n_shared
from dflash.evaluation.traces import load_traces
from dflash.evaluation.traces.filler import Filler, vocabulary
from dflash.evaluation.traces.session_prompts import SessionPrompts

FILLER = Filler(range(500), 7)


def built(found, name="s", filler=FILLER, answered=True):
    """All prompts of a trace, each answered with tokens of its own."""
    prompts, made = SessionPrompts(found, filler, name), []
    for index, request in enumerate(found.requests):
        made.append(prompts.prompt(index))
        if answered:
            prompts.answered(index, range(1000 * (index + 1), 1000 * (index + 1) + request.n_output))
    return made


@pytest.fixture
def growing(tmp_path):
    (found,) = load_traces(write(tmp_path, trace()))
    return found


def test_the_answer_follows_the_prompt_as_far_as_it_fits(growing):
    ids = [prompt.token_ids for prompt in built(growing)]
    assert [len(each) for each in ids] == [100, 160, 170, 90, 185]
    assert ids[1][:120] == ids[0] + list(range(1000, 1020))
    assert max(ids[1][120:]) < 500
    assert ids[2] == ids[1] + list(range(2000, 2010))
    assert ids[3][:48] == ids[0][:48]
    assert max(ids[3]) < 500
    assert ids[4][:175] == ids[2] + list(range(3000, 3005))
    assert [(prompt.n_before, prompt.n_own) for prompt in built(growing)] == [(0, 0), (100, 20), (160, 10), (0, 0), (170, 5)]


def test_without_an_answer_filler_follows(growing):
    made = built(growing, answered=False)
    assert made[1].token_ids[:100] == made[0].token_ids
    assert [prompt.n_own for prompt in made] == [0] * 5
    assert max(max(prompt.token_ids) for prompt in made) < 500


def random_session(rng, n=12):
    """Requests that grow, return to an earlier prompt, or are sent again."""
    ids, rows, new = [], [], iter(range(10_000))
    for _ in range(n):
        ids = list(rng.choice([ids, ids, ids, *[row["hash_ids"] for row in rows]]))
        ids = ids[: rng.choice([len(ids), len(ids), rng.randint(0, len(ids))])]
        ids += [next(new) for _ in range(rng.choice([0, 1, 1, 5]))]
        rows.append(traced(max(len(ids) * BLOCK + rng.randrange(BLOCK), 1), rng.choice([1, 7, 40]), ids))
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_equal_blocks_are_equal_tokens_and_no_more(seed, tmp_path):
    """Two prompts share the tokens of the blocks that they share; beyond these, an answer and what continues a prompt."""
    (found,) = load_traces(write(tmp_path, trace(random_session(random.Random(seed)))))
    made = built(found)
    for j, (later, prompt) in enumerate(zip(found.requests, made, strict=True)):
        assert len(prompt.token_ids) == later.n_prompt
        for i in range(j):
            n = n_shared(found.requests[i].blocks, later.blocks) * BLOCK
            assert prompt.token_ids[:n] == made[i].token_ids[:n]
            assert n_shared(prompt.token_ids, made[i].token_ids) < n + 3 * BLOCK
        if prompt.n_own:
            before = made[later.extends].token_ids
            assert prompt.token_ids[: len(before)] == before
            start = 1000 * (later.extends + 1)
            assert prompt.token_ids[len(before) :][: prompt.n_own] == list(range(start, start + prompt.n_own))


def test_sessions_share_no_text_unless_ids_are_shared(growing):
    first = [prompt.token_ids for prompt in built(growing)]
    assert first == [prompt.token_ids for prompt in built(growing)]
    for other in (built(growing, "t"), built(growing, filler=Filler(range(500), 8))):
        assert n_shared(first[0], other[0].token_ids) < 8
    everywhere = growing._replace(is_shared=True)
    one, two = built(everywhere, "s"), built(everywhere, "t")
    assert one[0].token_ids[:96] == two[0].token_ids[:96]


def test_filler_is_of_ordinary_tokens(lm):
    ids = vocabulary(lambda text: lm.tokenizer.encode(text, special=False))
    assert len(ids) > 500
    assert not lm.tokenizer.control_ids.intersection(ids)
    assert set(Filler(ids, 0).tokens("a", 4000)) <= set(ids)
    assert Filler(ids, 0).tokens("a", 64)[:10] == Filler(ids, 0).tokens("a", 10)
