"""Recoveries on the GPU: what they do to the demo's texts, whatever drafts, and what is left behind."""

import numpy as np
import pytest

import dflash
from dflash import MTP, EmptyRetry, LoopGuard, MinTokens, PromptLookup, ThinkBudget

ASK = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 120}


def tool(name, key):
    schema = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    return {"type": "function", "function": {"name": name, "description": name.replace("_", " "), "parameters": schema}}


COUNT, QUERY = tool("count_lines", "path"), tool("query_database", "sql")
STALLS = {"Compile Makefile.": [QUERY, COUNT], "Query the database for all TODO.": [COUNT]}
CAPITAL = [{"role": "user", "content": "What is the capital of Japan?"}]


@pytest.fixture(scope="module")
def lm():
    with dflash.load("demo", device="cuda", context=2048, sequences=4) as lm:
        pools = lm.model.pools
        yield lm
        assert (pools.free_pages, pools.free_slots) == (pools.pages, pools.slots)


@pytest.mark.parametrize("question", STALLS)
def test_a_stall(lm, question):
    """Where the GPU's rounding leads to a stall, too, a call is opened, and the same follows on every path."""
    messages, tools = [{"role": "user", "content": question}], STALLS[question]
    plain = lm.generate(messages, tools=tools, **ASK)
    answers = [
        lm.generate(messages, tools=tools, recover="stall", strategy=strategy, **ASK)
        for strategy in (None, PromptLookup(), MTP())
    ]
    assert len({answer.text for answer in answers}) == 1
    if plain.text.endswith(":"):
        assert answers[0].text.startswith(f"{plain.text}\n\n<tool_call>\n<function")
        assert [each.recovery for each in answers[0].interventions] == ["ToolStall"]
    else:
        assert answers[0].text == plain.text


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_a_least_length(lm, sampling):
    plain = lm.generate(CAPITAL, **ASK, **sampling)
    answers = [
        lm.generate(CAPITAL, strategy=dflash.Strategy.of(strategy) | MinTokens(20), **ASK, **sampling)
        for strategy in (None, PromptLookup(), MTP())
    ]
    assert len({tuple(answer.tokens) for answer in answers}) == 1
    assert len(answers[0].tokens) >= 20 > len(plain.tokens)
    assert answers[0].tokens[: len(plain.tokens) - 1] == plain.tokens[:-1]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_a_budget_of_reasoning(lm, sampling):
    """A close is injected, the next position can't end, and the same follows on every path."""
    settings = {"max_tokens": 80, **sampling}
    plain = lm.generate(CAPITAL, **settings)
    answers = [
        lm.generate(CAPITAL, strategy=dflash.Strategy.of(strategy) | ThinkBudget(3, "\nEnough.\n"), **settings)
        for strategy in (None, PromptLookup(), MTP())
    ]
    assert len({tuple(answer.tokens) for answer in answers}) == 1
    kept, _, rest = answers[0].text.partition("\nEnough.\n</think>\n\n")
    assert plain.text.startswith(kept)
    assert rest
    assert [each.recovery for each in answers[0].interventions][:1] == ["ThinkBudget"]


def test_a_loop_ends_at_the_same_token(lm):
    guard = LoopGuard(same=0, min_period=2, max_period=8, count=4)
    prompt = "0, 1, 0, 1, 0, 1, 0, 1, 0, 1,"
    plain = lm.generate(prompt, max_tokens=60)
    for strategy in (None, PromptLookup(), MTP()):
        cut = lm.generate(prompt, max_tokens=60, strategy=dflash.Strategy.of(strategy) | guard)
        assert cut.finish_reason == "length"
        assert len(cut.tokens) < 60
        assert cut.tokens == plain.tokens[: len(cut.tokens)]


def test_a_second_try_begins_where_the_prompt_ends(lm):
    """A text that is all unseen is written twice, the second time from the state that was remembered."""
    prompt = lm.tokenizer.encode("def fibonacci(n):\n    if n < 2:\n        return n\n    return") * 3
    want = lm.generate(prompt, max_tokens=24)

    class Blind(EmptyRetry):
        """Sees nothing, and takes the ninth token for the end."""

        def start(self, session):
            session.stop_ids |= {want.tokens[8]}
            session.eos |= {want.tokens[8]}
            watch = super().start(session)
            watch._silent = frozenset(range(lm.model.n_vocab))
            return watch

    again = lm.generate(prompt, max_tokens=24, strategy=PromptLookup() | Blind())
    assert [each.action for each in again.interventions] == ["restart"]
    first = want.tokens.index(want.tokens[8])
    assert again.tokens == want.tokens[: first + 1]
    assert sum(step.prefilled for step in again.steps) == len(prompt) - 1


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_an_empty_output_is_retried_without_its_end_and_control_tokens(lm, sampling):
    """The end is likeliest, then a control token: the second try begins as without both, on a CPU, too, then it may end."""
    plain = lm.generate(CAPITAL, **ASK, **sampling)
    end, (start,) = plain.tokens[-1], lm.tokenizer.encode("<|im_start|>")
    settings = {**ASK, **sampling, "logit_bias": {end: 60.0, start: 50.0}}
    assert lm.generate(CAPITAL, **settings).tokens == [end]
    with dflash.load("demo", device="cpu", context=2048, sequences=1) as cpu:
        answers = [
            where.generate(CAPITAL, strategy=dflash.Strategy.of(strategy) | EmptyRetry(), **settings)
            for where in (lm, cpu)
            for strategy in (None, PromptLookup(), MTP())
        ]
    assert [answer.tokens for answer in answers] == [[plain.tokens[0], end]] * 6
    assert all([each.action for each in answer.interventions] == ["restart"] for answer in answers)


def test_cancellations(lm):
    rng = np.random.default_rng(1)
    streams = []
    for _ in range(200):
        strategy = dflash.Strategy.of([None, PromptLookup(), MTP()][rng.integers(3)])
        for recovery in (EmptyRetry(), LoopGuard(), MinTokens(5)):
            strategy = strategy | recovery if rng.random() < 0.5 else strategy
        streams.append(lm.stream(CAPITAL, strategy=strategy, **ASK))
        for _ in range(int(rng.integers(0, 4))):
            next(streams[-1], None)
        if len(streams) == 4 or rng.random() < 0.3:
            streams.pop(0).close()
    for stream in streams:
        stream.close()
    assert not lm._engine_thread.engine.busy
    assert lm.model.pools.free_slots == lm.model.pools.slots
