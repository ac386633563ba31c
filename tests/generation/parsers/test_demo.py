"""Tool calls and reasoning that the demo model writes, in notebooks and streams."""

import pytest
from parsing import tool

import dflash
from dflash.errors import RequestError
from dflash.generation.parsers import ArgumentsDelta, CallEnd, CallStart, ContentDelta, ParsedOutput, ReasoningDelta

STRING = {"type": "string"}
WEATHER = tool("get_weather", city=STRING)
CONVERT = tool("convert_currency", amount={"type": "number"}, from_currency=STRING, to_currency=STRING)
READ, BASH = tool("read_file", path=STRING), tool("bash", command=STRING)
TOOLS = [WEATHER, CONVERT]
STRATEGIES = ["plain", "mtp:3", "dflash:8", "ddtree:22"]
WITHOUT = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 160}
TWO = [("get_weather", {"city": "London"}), ("get_weather", {"city": "Tokyo"})]


def question(text):
    return [{"role": "user", "content": text}]


LONDON = question("What is the weather in London and Tokyo?")
EURO = question("Convert 250 USD to EUR.")
FILE = question("Read the file src/main.py.")


@pytest.fixture(scope="module")
def plain(lm):
    """Completions by plain decoding, in batches of one."""
    return [lm.generate(messages, tools=TOOLS, **WITHOUT) for messages in (LONDON, EURO)]


def calls_of(generation):
    return [(call.name, call.parsed) for call in generation.tool_calls]


def parts(generation):
    calls = [(call.name, call.arguments, call.complete) for call in generation.tool_calls]
    return generation.text, generation.content, generation.reasoning, calls, generation.finish_reason


def test_a_completion_with_calls(lm):
    generation = lm.generate(LONDON, tools=[WEATHER], **WITHOUT)
    assert generation.text.count("<tool_call>") == 2
    assert calls_of(generation) == TWO
    assert generation.finish_reason == "tool_calls"
    assert generation.reasoning == ""
    assert generation.content == generation.text.partition("<tool_call>")[0] + "\n"
    assert [call["arguments"] for call in generation.as_dict()["tool_calls"]] == ['{"city": "London"}', '{"city": "Tokyo"}']
    answered = lm.generate(question("What is the capital of Japan?"), tools=[WEATHER], **WITHOUT)
    assert (answered.tool_calls, answered.finish_reason) == ([], "stop")


def test_reasoning_then_a_call(lm):
    generation = lm.generate(FILE, tools=[READ, BASH], max_tokens=160)
    thought, _, rest = generation.text.partition("\n</think>\n\n")
    assert thought
    assert (generation.reasoning, generation.content) == (thought, rest.partition("<tool_call>")[0])
    assert calls_of(generation) == [("read_file", {"path": "src/main.py"})]


def test_the_conversation_goes_on_with_the_same_tokens(lm):
    """The message that a client sends back renders to the tokens that the model wrote."""
    generation = lm.generate(FILE, tools=[READ, BASH], max_tokens=160)
    message = {
        "role": "assistant",
        "content": generation.content.rstrip(),
        "reasoning_content": generation.reasoning,
        "tool_calls": [call.as_message() for call in generation.tool_calls],
    }
    result = {"role": "tool", "tool_call_id": generation.tool_calls[0].id, "content": "print()"}
    after = lm.generate([*FILE, message, result], tools=[READ, BASH], max_tokens=1)
    assert after.prompt[: len(generation.prompt) + len(generation.tokens)] == generation.prompt + generation.tokens


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_streams_and_batches_give_the_same_parts(lm, pools, plain, strategy):
    asked = {"tools": TOOLS, "strategy": strategy, **WITHOUT}
    together = lm.generate([LONDON, EURO], **asked)
    assert calls_of(together[1]) == [("convert_currency", {"amount": 250, "from_currency": "USD", "to_currency": "EUR"})]
    assert [parts(one) for one in together] == [parts(one) for one in plain]
    with lm.stream(LONDON, **asked) as stream:
        deltas = list(stream)
    events = [event for delta in deltas for event in delta.events]
    assert "".join(delta.content for delta in deltas) == stream.generation.content
    assert "".join(delta.reasoning for delta in deltas) == stream.generation.reasoning
    assert parts(stream.generation) == parts(plain[0])
    assert stream.generation.output == ParsedOutput.of(events)
    assert [type(event) for event in events if not isinstance(event, ArgumentsDelta | ContentDelta)] == [
        CallStart,
        CallEnd,
    ] * 2


def test_a_string_is_streamed_before_its_end(lm):
    with lm.stream(FILE, tools=[READ, BASH], **WITHOUT) as stream:
        at = {}
        for n, delta in enumerate(stream):
            for event in delta.events:
                at.setdefault(type(event), n)
                at[CallEnd] = n if isinstance(event, CallEnd) else at.get(CallEnd)
    assert at[ContentDelta] < at[CallStart] <= at[ArgumentsDelta] < at[CallEnd]


@pytest.mark.parametrize(("given", "meant"), [("max_token", "max_tokens"), ("temprature", "temperature")])
def test_a_misspelt_argument(lm, given, meant):
    with pytest.raises(
        TypeError, match=rf"generate\(\) got an unexpected keyword argument '{given}' \(did you mean {meant}\?\)"
    ):
        lm.generate("a", **{given: 1})


def test_a_case_is_no_prompt(lm):
    """Its settings would be lost."""
    cases = dflash.load_prompts("copy")[:2]
    for prompt in (cases[0], cases):
        with pytest.raises(RequestError, match=r"a case of load_prompts; pass case\.prompt"):
            lm.generate(prompt)


def test_a_call_cut_by_length_or_by_a_stop_string(lm):
    whole = lm.generate(LONDON, tools=[WEATHER], **WITHOUT)
    cut = lm.generate(LONDON, tools=[WEATHER], **WITHOUT, stop="Tok")
    assert cut.text == whole.text.partition("Tok")[0]
    assert [call.arguments for call in cut.tool_calls] == ['{"city": "London"}', '{"city": "']
    assert [call.complete for call in cut.tool_calls] == [True, False]
    assert cut.finish_reason == "tool_calls"
    short = lm.generate(LONDON, tools=[WEATHER], **{**WITHOUT, "max_tokens": len(cut.tokens) - 1})
    assert short.finish_reason == "length"
    assert short.tool_calls[1].arguments.startswith('{"city": "')
    assert not short.tool_calls[1].complete


def test_a_stop_string_in_reasoning(lm):
    whole = lm.generate(question("What is 57 + 68?"), max_tokens=60)
    assert whole.reasoning
    assert whole.content
    stop = whole.reasoning[10:14]
    cut = lm.generate(question("What is 57 + 68?"), max_tokens=60, stop=stop)
    assert (cut.reasoning, cut.content) == (whole.reasoning.partition(stop)[0], "")
    assert cut.finish_reason == "stop"


def test_parsers_are_chosen_by_name_or_not_at_all(lm):
    raw = lm.generate(FILE, tools=[READ, BASH], max_tokens=160, reasoning_parser="none", tool_parser="none")
    assert (raw.content, raw.reasoning, raw.tool_calls, raw.finish_reason) == (raw.text, "", [], "stop")
    other = lm.generate(FILE, tools=[READ, BASH], max_tokens=160, tool_parser="hermes")
    assert other.text == raw.text
    assert other.content == raw.text.partition("</think>\n\n")[2]
    prompt = lm.tokenizer.decode(lm.encode(question("What is 57 + 68?")))
    assert lm.generate(prompt, max_tokens=60).reasoning == ""
    assert lm.generate(prompt, max_tokens=60, reasoning_parser="qwen3").reasoning
    with pytest.raises(
        RequestError,
        match=r"^tool_parser: 'xml' is not known; there are none, hermes, llama3, mistral, qwen2.5, qwen3-coder$",
    ):
        lm.generate(FILE, tool_parser="xml")


def test_text_prompts_are_as_before(lm):
    with lm.stream("def add(a, b):", max_tokens=8) as stream:
        deltas = list(stream)
    assert [list(delta.events) for delta in deltas] == [[ContentDelta(delta.text)] if delta.text else [] for delta in deltas]
    generation = stream.generation
    assert (generation.content, generation.reasoning, generation.tool_calls) == (generation.text, "", [])
    assert not {"content", "reasoning", "tool_calls"} & set(generation.as_dict())


def test_reasoning_is_streamed(lm):
    with lm.stream(question("What is 57 + 68?"), max_tokens=60) as stream:
        events = [event for delta in stream for event in delta.events]
    kinds = [type(event) for event in events]
    assert kinds == [ReasoningDelta] * kinds.count(ReasoningDelta) + [ContentDelta] * kinds.count(ContentDelta)
    assert min(kinds.count(ReasoningDelta), kinds.count(ContentDelta)) > 2
