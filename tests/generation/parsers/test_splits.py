"""The events of a text do not depend on how it is split, and no text raises."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing import CLOSED, JSON, LLAMA, MISTRAL, OPENED, QWEN, TOOLS, XML, call, events, parsed, parser

PIECES = {
    XML: (
        *("<tool_call>", "</tool_call>", "<function=", "<function=get_weather>", "<function=none>", "</function>", ">"),
        *(
            "<parameter=city>",
            "<parameter=days>",
            "<parameter=",
            "</parameter>",
            call("get_time"),
            call("get_weather", days="3"),
        ),
    ),
    JSON: (
        *(
            "<tool_call>",
            "</tool_call>",
            "<tool_call>{",
            '"name": ',
            '"get_time"',
            '"arguments": ',
            "}",
            "{",
            "[",
            "]",
            ",",
            ":",
        ),
        *('<tool_call>{"name": "get_time", "arguments": {"a": [', '"a<b"', "\\", '"', '<tool_call>\n{"name": "none"', "<"),
        *('<tool_call>\n{"arguments": {"x": 1.0}, "name": "write"}\n</tool_call>', "1"),
    ),
}
PIECES[QWEN] = (
    *PIECES[JSON],
    *("```json\n", "```", "\n```\n", "``", "<tools>", "</tools>", '{"name": "get_time", "arguments": {}}', '{\n"name":'),
    *('```json\n{"name": "get_time", "arguments": {}}\n```', '{"name": "write", "arguments": {"path": 1}}'),
)
PIECES[LLAMA] = (
    *("<|python_tag|>", "{", "}", ";", "; {", ": ", '"name"', '"get_time"', '"parameters"', ",", "[", '{"name": "get_time"'),
    *('{"name": "get_time", "parameters": {"a": 1}}', '{"parameters": {}, "name": "write"}', '{"name": "none"}', "<|python"),
)
PIECES[MISTRAL] = (
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_", "[", "]", "{", "}", ",", ", {", "get_time", '{"a": [1]}', "none"),
    *('[TOOL_CALLS] [{"name": "get_time", "arguments": {}}', ', {"name": "write"', "[TOOL_CALLS]get_time[ARGS]{"),
)
COMMON = ("<think>", "</think>", "\n", "\n\n", " ", "text", "<", "</", "é", '"', "\\", "5", "None")
PROMPTS = {OPENED: "thinking", CLOSED: "answering", "<think>": "same line"}


def texts(calls, n, seed):
    choice = random.Random(seed)
    for _ in range(n):
        pieces = choice.choices(PIECES[calls] + COMMON, k=choice.randint(1, 7))
        if choice.random() < 0.5:
            cut = choice.randrange(len(pieces))
            pieces[cut] = pieces[cut][: choice.randint(0, len(pieces[cut]))]
        yield "".join(pieces)


@pytest.mark.parametrize("prompt", PROMPTS, ids=PROMPTS.get)
@pytest.mark.parametrize("calls", PIECES)
def test_every_split_into_two_gives_the_same_events(calls, prompt):
    for text in texts(calls, 70, seed=prompt):  # 1,050 texts in all
        whole = events([text], calls=calls, prompt=prompt)
        for at in range(1, len(text)):
            assert events([text[:at], text[at:]], calls=calls, prompt=prompt) == whole, (text, at)


@pytest.mark.parametrize("calls", PIECES)
def test_random_splits_give_the_same_events(calls):
    choice = random.Random(1)
    for text in texts(calls, 160, seed=2):
        prompt = choice.choice([*PROMPTS])
        ends = sorted(choice.choices(range(len(text) + 1), k=choice.randint(2, 20)))
        parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
        assert events(parts, calls=calls, prompt=prompt) == events([text], calls=calls, prompt=prompt), parts
        assert events([*text], calls=calls, prompt=prompt) == events([text], calls=calls, prompt=prompt), text


@pytest.mark.parametrize("calls", PIECES)
@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_text_raises(calls, tools, data):
    pieces = st.one_of(
        st.text(), st.sampled_from(PIECES[calls] + COMMON), st.binary().map(lambda raw: raw.decode("latin-1"))
    )
    parts = data.draw(st.lists(pieces, max_size=12))
    found = events(parts, tools, calls=calls, prompt=data.draw(st.sampled_from([*PROMPTS, ""])))
    assert tools or not any(fields[0].startswith(("Call", "Arguments")) for fields, _ in found)


def test_lone_surrogates_pass():
    text = call("write", path="\ud800x")
    assert events([*text]) == events([text])
    assert json.loads(events([text])[1][1]) == {"path": "\ud800x"}


def test_deltas_are_final_as_soon_as_possible():
    """Text is held back only while it may become a tag; white space alone is passed on."""
    one = parser(prompt=OPENED)
    assert [event.text for part in ("Hm", " ", "\t", "a <b") for event in one.push(part)] == ["Hm", " ", "\t", "a <b"]
    assert one.push("\n</thi") == []
    assert one.push("nk>\n\n") == []
    assert [event.text for part in ("\n", " ", "x</tool_call") for event in one.push(part)] == ["\n", " ", "x</tool_call"]


def test_a_string_is_passed_on_while_it_is_written():
    one = parser()
    assert [type(event).__name__ for event in one.push("<tool_call>\n<function=write")] == []
    assert [type(event).__name__ for event in one.push(">")] == ["CallStart", "ArgumentsDelta"]
    deltas = [
        [event.text for event in one.push(part)] for part in ("<parameter=content>\n", 'a"', "\n", "b\n", "</parameter>")
    ]
    assert deltas == [['"content": "'], ['a\\"'], [], ["\\nb"], []], "what follows tells if the value has ended"
    parts = ("\n<parameter=options>\n{", '"a": 1', "}\n</parameter>\n</function>")
    assert [[event.text for event in one.push(part)[:1]] for part in parts] == [['", "options": '], [], ['{"a": 1}}']]


OBJECT = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
ENDS = {
    XML: call("get_weather", city="Rome"),
    JSON: f"<tool_call>\n{OBJECT}\n</tool_call>",
    QWEN: f"<tool_call>\n{OBJECT}\n</tool_call>",
    LLAMA: '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}} ; ',
    MISTRAL: f"[TOOL_CALLS] [{OBJECT} , ",
}


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("calls", ENDS)
def test_a_call_that_is_cut_in_what_closes_it_leaves_no_text(calls, bound):
    """With whatever stands between the last bracket of the call and the last letter of its end."""
    whole = f"```json\n{OBJECT}\n```" if bound and calls == QWEN else ENDS[calls]
    given = {"calls": calls, "bound": bound, "cut": True}
    n_end = len(whole) - max(whole.rfind("</function>") + 11, whole.rfind("}") + 1)
    assert n_end > 2
    for n in range(n_end):
        text = whole[: len(whole) - n]
        (one,) = parsed(text, **given).tool_calls
        assert (one.name, one.complete, parsed(text, **given).content) == ("get_weather", True, "")
        assert events([text], **given) == events(list(text), **given)
