"""Calls as XML: what is a call, what is text, and what arguments become."""

import json

import pytest
from parsing import CLOSED, JSON, OPENED, XML, call, calls_of, events, parsed, tool

from dflash.generation.parsers import CallEnd, CallStart


def test_text_before_between_and_after_calls_stays_as_written():
    text = f"I look:\n\n{call('get_weather', city='Oslo')}\n{call('get_time')}\n\n done \n"
    output = parsed(text)
    assert calls_of(output) == [("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")]
    assert output.content == "I look:\n\n\n\n\n done \n"
    assert [each.complete for each in output.tool_calls] == [True, True]
    assert [each.parsed for each in output.tool_calls] == [{"city": "Oslo"}, {}]


def test_identifiers_differ_within_and_between_completions():
    first, second = (parsed(call("get_time") * 2).tool_calls for _ in range(2))
    assert len({each.id for each in first + second}) == 4


def test_events_have_indices_in_order():
    fields = [each for each, _ in events([call("get_time") + call("get_weather", days="2")])]
    assert fields == [
        *(("CallStart", 0, "get_time"), ("ArgumentsDelta", 0, None), ("CallEnd", 0, None)),
        *(("CallStart", 1, "get_weather"), ("ArgumentsDelta", 1, None), ("CallEnd", 1, None)),
    ]
    assert CallEnd(0) != CallEnd(1)
    assert CallStart(0, "a", "f") == CallStart(0, "a", "f")


@pytest.mark.parametrize(
    ("opening", "closing"), [("", "\n</tool_call>"), ("", ""), ("<tool_call>", ""), ("<tool_call>\r\n \n", "</tool_call>")]
)
def test_the_outer_tags_may_be_missing(opening, closing):
    output = parsed("a " + call("get_weather", city="Rome", opening=opening, closing=closing) + " b")
    assert calls_of(output) == [("get_weather", '{"city": "Rome"}')]
    assert output.content == "a  b"


@pytest.mark.parametrize(
    "text",
    [
        call("get_wether", opening="", closing=""),
        "Write <tool_call> and then <function=NAME>, please.",
        "<tool_call>\n<tool_response>",
        "<tool_call>" + " " * 80 + call("get_wether", opening=""),
        "<tool_call>\n<function=get_weather",
        "<function=get_\nweather>",
        "<tool_call>\n",
        "a </function></tool_call></parameter><parameter=city>",
        '<tool_call>{"name": "get_time"}</tool_call>',
    ],
)
def test_text_that_never_became_a_call_is_text(text):
    output = parsed(text)
    assert output.content == text
    assert not output.tool_calls


@pytest.mark.parametrize("text", [call("get_wether", city="Oslo"), call("get_wether", city="x" + call("get_time"))])
def test_calls_of_functions_that_were_not_offered(text):
    """They reach the caller as calls, values as texts, unless only offered functions are wanted."""
    (one,) = parsed(text).tool_calls
    assert (one.name, one.complete, list(one.parsed)) == ("get_wether", True, ["city"])
    assert parsed(text, offered_only=True).content == text


def test_a_call_after_an_unknown_one_is_a_call():
    unknown = call("get_wether", city="Oslo")
    output = parsed(f"{unknown}\n{call('get_time')}", offered_only=True)
    assert output.content == unknown + "\n"
    assert calls_of(output) == [("get_time", "{}")]


def test_without_tools_calls_are_text():
    for tools in (None, []):
        assert parsed(call("get_time"), tools).content == call("get_time")
    assert parsed(call("get_time"), calls="none").content == call("get_time")


def value(text, **settings):
    (one,) = parsed(call("write", path=text), **settings).tool_calls
    return one.parsed["path"]


@pytest.mark.parametrize(
    "text", ["", "\n", "\n\n", " ", "a\n", "\na", "a\nb", '"', "\\n", "\t", "True", "1", "<b>", "</param", "\u2028"]
)
def test_one_line_break_on_each_side_belongs_to_the_tags(text):
    assert value(text) == text


@pytest.mark.parametrize(
    "text",
    [
        '<job><parameter name="n">5</parameter><step/></job>',
        'END = "</parameter>"\nprint(END)',
        "A call ends with </function> on its own line.\nSecond line.",
        "a\n</function>\nb",
        "a\n</parameter>\nb",
        "a </parameter>\n</function> b",
        "a\n</parameter></parameter>",
        "</parameter>",
        "</function>\n\n</function>",
        "x <parameter=content> y",
        "<parameter=path>\nagain",
        "a\n</parameter>\n<parameter=path>",
        "a\n<parameter=unknown>\nb",
        "<tool_call>\n<function=get_time>\n</tool_call>",
    ],
)
def test_tags_in_a_text(text):
    assert value(text) == text
    assert value(text, tools=[tool("write", path={"type": ["string", "null"]}, content={"type": "string"})]) == text


def test_a_value_of_one_line_with_its_end_in_the_line():
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo</parameter>\n<parameter=days>\n2</parameter>\n"
    assert calls_of(parsed(f"{text}</function>\n</tool_call>")) == [("get_weather", '{"city": "Oslo", "days": 2}')]
    assert calls_of(parsed(f"{text}</function>")) == [("get_weather", '{"city": "Oslo", "days": 2}')]


def test_values_without_line_breaks():
    body = "<parameter=path>a</parameter><parameter=content></parameter><parameter=options>\n</parameter>"
    text = f"<function=write>{body}</function>"
    assert calls_of(parsed(text)) == [("write", '{"path": "a", "content": "", "options": ""}')]


def test_a_missing_end_of_a_parameter():
    """As the demo model writes it: the next parameter or the end of the function closes a parameter."""
    tools = [tool("book_table", color={"type": "string"}, city={"type": "string"})]
    text = "<tool_call>\n<function=book_table>\n<parameter=color>\n<parameter=city>\nBrussels\n</function>\n</tool_call>"
    assert calls_of(parsed(text, tools)) == [("book_table", '{"color": "", "city": "Brussels"}')]


@pytest.mark.parametrize(
    "inner", ["<parameter=", "<parameter=\n>", "<parameter=a<b>", "<parameter>", "<parameter=" + "k" * 300 + ">"]
)
def test_text_like_a_parameter_is_part_of_the_value(inner):
    assert value(f"x {inner} y") == f"x {inner} y"


def test_a_function_closed_by_the_outer_tag():
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</tool_call> then"
    output = parsed(text)
    assert calls_of(output) == [("get_weather", '{"city": "Oslo"}')]
    assert (output.content, output.tool_calls[0].complete) == (" then", True)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", "{"),
        ("\n<parameter=ci", "{"),
        ("<parameter=city>\n", '{"city": "'),
        ("<parameter=city>\nOs\n</para", '{"city": "Os\\n</para'),
        ("<parameter=city>\nOs\n</parameter>\n</func", '{"city": "Os"'),
        ("<parameter=days>\n1", '{"days": 1'),
        ("<parameter=days>\n[1, ", '{"days": [1, '),
    ],
)
def test_a_call_that_the_run_cuts_is_not_closed(text, arguments):
    output = parsed("<tool_call>\n<function=get_weather>" + text)
    assert calls_of(output) == [("get_weather", arguments)]
    assert not output.tool_calls[0].complete
    assert output.tool_calls[0].parsed is None
    assert output.content == ""


def test_no_parameter_begins_twice():
    """An unknown one is passed on. A second tag of a text is text; that of another value is dropped with its value."""
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in (("country", 12), ("days", 1), ("days", 2)))
    text = f"<function=get_weather>\n{body}</function>"
    assert calls_of(parsed(text)) == [("get_weather", '{"country": "12", "days": 1}')]
    twice = "a\n</parameter>\n<parameter=path>\n/etc/passwd"
    assert value(twice) == twice
    assert parsed(call("write", path="a", content=twice)).tool_calls[0].parsed == {"path": "a", "content": twice}


def test_text_between_parameters_is_no_argument():
    text = "<function=get_weather>here: <parameter=city>\nOslo\n</parameter>\n</function>"
    output = parsed(text)
    assert (calls_of(output), output.content) == ([("get_weather", '{"city": "Oslo"}')], "")


def test_names_and_keys_with_unusual_characters():
    tools = [tool('mcp/server.do "it"', **{'a "b" ü': {"type": "boolean"}})]
    text = call('mcp/server.do "it"', **{'a "b" ü': "True"})
    (one,) = parsed(text, tools).tool_calls
    assert one.name == 'mcp/server.do "it"'
    assert one.arguments == '{"a \\"b\\" ü": true}'


@pytest.mark.parametrize("calls", [XML, JSON])
@pytest.mark.parametrize("prompt", [OPENED, CLOSED])
def test_a_run_that_is_cut_in_the_head_of_a_call_shows_nothing_of_it(calls, prompt):
    text = call("get_weather", city="x") if calls == XML else '<tool_call>\n{"name": "get_weather", "arguments": {}}'
    for n in range(len("<tool_call>"), text.index("get_weather") + 11):
        output = parsed("Hm " + text[:n], calls=calls, prompt=prompt, cut=True)
        assert (output.content + output.reasoning, output.tool_calls) == ("Hm ", [])
        output = parsed("Hm " + text[:n], calls=calls, prompt=prompt)
        assert output.content + output.reasoning == "Hm " + text[:n]


def test_reasoning_opens_again_right_after_its_end_only():
    output = parsed("a\n</think>\n\n<think>\nb</think>c <think>d</think>", prompt=OPENED)
    assert (output.reasoning, output.content) == ("ab", "c <think>d</think>")


def test_a_call_inside_reasoning_ends_it():
    text = f"I need\n{call('get_time')}\nNow"
    output = parsed(text, prompt=OPENED)
    assert (output.reasoning, output.content) == ("I need\n", "\nNow")
    assert calls_of(output) == [("get_time", "{}")]


@pytest.mark.parametrize(
    "thought",
    ["I write <tool_call> first", call("none", city="x"), "<function=get_time></function>", "<tool_call>\n<function=none>"],
)
def test_thoughts_about_calls_are_reasoning(thought):
    output = parsed(f"{thought}\n</think>\n\n{call('get_time')}", prompt=OPENED)
    assert (output.reasoning, output.content) == (thought, "")
    assert calls_of(output) == [("get_time", "{}")]


def test_without_tools_a_call_in_reasoning_is_reasoning():
    output = parsed(f"{call('get_time')}\n</think>\n\nx", None, prompt=OPENED)
    assert (output.reasoning, output.content) == (call("get_time"), "x")


def test_json_of_a_string_value_is_valid():
    odd = "".join(map(chr, (*range(1, 0x250), 0x2028, 0xFFFD, 0x1F600))).replace("<", "")
    assert json.loads(parsed(call("write", path=odd), calls=XML).tool_calls[0].arguments) == {"path": odd}
