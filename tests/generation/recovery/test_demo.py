"""Recoveries on the demo model: stalls that it has, and answers that only look like one."""

import pytest

from dflash import MTP, LoopGuard, MinTokens, PromptLookup, ThinkBudget
from dflash.errors import RequestError, Unsupported

NO_THINKING = {"enable_thinking": False}


def tool(name, **parameters):
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name.replace("_", " "), "parameters": schema}}


COUNT, QUERY = tool("count_lines", path="string"), tool("query_database", sql="string")
STALLS = {
    "I'll read the file --oneline -3:": ("Compile Makefile.", [QUERY, COUNT]),
    "I'll count:": ("Query the database for all TODO.", [COUNT]),
}


def ask(lm, question, tools=None, **settings):
    messages = [{"role": "user", "content": question}]
    return lm.generate(messages, tools=tools, max_tokens=120, chat_template_kwargs=NO_THINKING, **settings)


@pytest.mark.parametrize("said", STALLS)
def test_a_stall_becomes_a_call(lm, said):
    question, tools = STALLS[said]
    assert ask(lm, question, tools).text == said
    answers = [ask(lm, question, tools, recover="stall", strategy=strategy) for strategy in (None, PromptLookup(), MTP())]
    first = answers[0]
    assert first.text.startswith(f"{said}\n\n<tool_call>\n<function=")
    assert first.text.endswith("</function>\n</tool_call>")
    assert len({answer.text for answer in answers}) == 1
    for answer in answers:
        assert [each.recovery for each in answer.interventions] == ["ToolStall"]
        assert answer.finish_reason == "tool_calls"
    name = tools[0]["function"]["name"] if len(tools) == 1 else ""
    assert f"<function={name}" in first.text


def test_the_default_tool_is_called(lm):
    question, tools = STALLS["I'll read the file --oneline -3:"]
    for name, key in (("query_database", "sql"), ("count_lines", "path")):
        text = ask(lm, question, tools, recover=f"stall:{name}").text
        assert f"<tool_call>\n<function={name}>\n<parameter={key}>\n" in text
        assert text.count("<tool_call>") == 1


def test_answers_that_are_right_are_left_alone(lm):
    tools = [tool("read_file", path="string"), tool("bash", command="string"), tool("get_weather", city="string")]
    questions = ["Read the file src/main.py.", "What is the capital of Japan?", "What is the weather in Oslo?", "Hello!"]
    for question in questions:
        plain = ask(lm, question, tools)
        watched = ask(lm, question, tools, recover="empty,stall,loop")
        assert (watched.tokens, watched.interventions) == (plain.tokens, [])


@pytest.mark.parametrize(
    "said", ["The colours are:", "It is done", "I'll say when it is done:", "Let me say this: it is done"]
)
def test_words_that_only_look_like_a_stall(lm, said):
    """The model is forced to write these texts and then to end."""
    ids = [*lm.tokenizer.encode(said, special=False), lm.tokenizer.eos]

    class Says:
        def start(self, session):
            session.forced_ids = tuple(ids)

    answer = ask(lm, "Go on.", [COUNT], strategy=PromptLookup() | Says(), recover="stall")
    assert (answer.tokens, answer.interventions) == (ids, [])


def test_nothing_else_is_called_where_tools_are_not(lm):
    assert ask(lm, STALLS["I'll count:"][0], recover="stall").interventions == []


def test_the_environment_turns_it_on(lm, monkeypatch):
    question, tools = STALLS["I'll count:"]
    for value, called in (("1", True), ("off", False)):
        monkeypatch.setenv("DFLASH_STALL_TOOL_PREFIX", value)
        assert ("<tool_call>" in ask(lm, question, tools).text) == called


def test_a_least_length(lm):
    plain = ask(lm, "What is the capital of Japan?")
    longer = ask(lm, "What is the capital of Japan?", strategy=PromptLookup() | MinTokens(20))
    assert len(plain.tokens) < 20 <= len(longer.tokens)
    assert longer.tokens[: len(plain.tokens) - 1] == plain.tokens[:-1]


@pytest.mark.parametrize("n", [0, 3, 5, 100])
def test_reasoning_has_a_budget(lm, n):
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    plain = lm.generate(question, max_tokens=200)
    budget = ThinkBudget(n, "\nEnough.\n")
    answers = [
        lm.generate(question, max_tokens=200, recover=budget, strategy=name)
        for name in (None, "lookup", "mtp-tree:6", "adaptive")
    ]
    answers += lm.generate([question] * 2, max_tokens=200, strategy=MTP() | budget)
    assert len({answer.text for answer in answers}) == 1
    first = answers[0]
    assert first.finish_reason == "stop"
    assert first.content.strip()
    if n == 100:
        assert (first.tokens, first.interventions) == (plain.tokens, [])
        return
    kept, _, rest = first.text.partition("\nEnough.\n</think>\n\n")
    assert rest
    assert plain.reasoning.startswith(kept)
    assert n <= len(lm.tokenizer.encode(kept)) <= n + 2
    assert not (kept[-1:].isalnum() and plain.reasoning[len(kept)].isalnum())


def test_a_budget_without_reasoning_changes_nothing(lm):
    answers = [ask(lm, "What is the capital of Japan?", recover=recover) for recover in ("", "think:0,think-leak")]
    assert (answers[0].tokens, answers[1].interventions) == (answers[1].tokens, [])
    with pytest.raises(RequestError, match="text: must not contain <think> or </think>"):
        ask(lm, "Hello!", recover=ThinkBudget(3, "so</think>"))


def test_a_strategy_that_can_not_be_loaded_is_an_error_at_once(lm, pools, monkeypatch):
    def refuse(self, model):
        raise Unsupported("MTP: there is no head")

    monkeypatch.setattr(MTP, "prepare", refuse)
    for stream in (True, False):
        with pytest.raises(Unsupported, match="there is no head"):
            lm.generate("a", strategy=MTP("other.gguf"), stream=stream)
    assert not lm._engine_thread.engine.busy


@pytest.mark.parametrize("recovery", [LoopGuard, 3, MTP()], ids=repr)
def test_what_is_no_recovery(lm, pools, recovery):
    for arguments in ({"recover": recovery}, {"recover": [recovery]}, {"strategy": MTP() | recovery}):
        with pytest.raises(ValueError, match=r"strategy: .* is not a recovery"):
            lm.generate("a", **arguments)


def test_a_recovery_needs_no_list(lm):
    plain = ask(lm, "What is the capital of Japan?")
    assert len(ask(lm, "What is the capital of Japan?", recover=MinTokens(20)).tokens) > 20 > len(plain.tokens)


@pytest.mark.parametrize("strategy", [MTP, 7])
def test_what_is_no_strategy(lm, strategy):
    with pytest.raises(ValueError, match="strategy: wanted a name, a Strategy or a drafter"):
        lm.generate("a", strategy=strategy)
