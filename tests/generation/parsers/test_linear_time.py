"""Parsers take linear time, whatever the text, in one piece and in pieces of four characters."""

import pytest
from linear_work import check_linear
from long_form import LONG
from parsing import CLOSED, JSON, LLAMA, MISTRAL, OPENED, QWEN, XML, parser

N = 1 << (18 if LONG else 17)
"""Most characters of a text."""
SECONDS = 0.5 if LONG else 0.25
"""CPU seconds; a text takes at most a third of it, and more than one where work is quadratic."""
XML_START = "<tool_call>\n<function=write>\n"
JSON_START = '<tool_call>\n{"name": "write", "arguments": '
TEXTS = {
    XML: {
        "angle brackets": ("", "<"),
        "openings": ("", "<tool_call>"),
        "blank heads": ("", "<tool_call>" + " " * 60),
        "unknown functions": ("", "<tool_call><function=none>"),
        "unclosed names": ("", "<function=write"),
        "one name": ("<tool_call><function=", "a"),
        "ends of reasoning": ("", "</think>"),
        "calls": ("", "<tool_call><function=write></function></tool_call>"),
        "parameters": (XML_START, "<parameter=path>"),
        "values": (XML_START, "<parameter=x>1</parameter>"),
        "unclosed parameters": (XML_START + "<parameter=path>", "\n<parameter="),
        "one key": (XML_START + "<parameter=path>\n<parameter=", "a"),
        "tags in a string": (XML_START + "<parameter=path>", "</parameter"),
        "line breaks": (XML_START + "<parameter=path>", "\n"),
        "ends that are none": (XML_START + "<parameter=path>\n", "\n</parameter>\n"),
        "ends and blanks": (XML_START + "<parameter=path>\n", "\n</parameter>" + " " * 60),
        "ends of functions": (XML_START + "<parameter=path>\n", "\n</function>\n"),
        "parameters again": (XML_START + "<parameter=path>\n", "\n</parameter>\n<parameter=path>"),
        "ends in a line": (XML_START + "<parameter=path>\nx", " </parameter>\n"),
        "quotes": (XML_START + "<parameter=path>", '"'),
        "nested JSON": (XML_START + "<parameter=options>", '{"a": ['),
        "digits": (XML_START + "<parameter=options>", "9"),
        "text between tags": (XML_START, "</functio"),
        "blank end": ("<function=write></function>", " "),
    },
    JSON: {
        "openings": ("", "<tool_call>"),
        "heads": ("", "<tool_call>{"),
        "calls": ("", '<tool_call>{"name":"write"}</tool_call>'),
        "nested arrays": (JSON_START, "["),
        "nested objects": (JSON_START, '{"a":'),
        "pairs": (JSON_START + "[", "[]"),
        "nested pairs": (JSON_START + "[", "[[]]"),
        "quotes": (JSON_START + "[", '"'),
        "open strings": (JSON_START + "[", '"\\'),
        "arguments as text": (JSON_START + '"', '{\\"a\\":'),
        "escapes": (JSON_START + '"', "\\"),
        "angle brackets": (JSON_START + "[", "<"),
        "unclosed tags": (JSON_START + "[", "</tool_cal"),
        "a long key": ('<tool_call>{"', "a"),
        "keys": ("<tool_call>{", '"a":1,'),
        "arguments before the name": ('<tool_call>{"arguments": "', "x"),
        "text that is not JSON": ('<tool_call>{"name": "write" ', "</tool"),
        "digits": (JSON_START, "9"),
    },
    QWEN: {
        "fences": ("", "```json\n"),
        "ends of fences": ("", "\n```\n"),
        "brackets": ("", "{"),
        "lines of brackets": ("", "\n{"),
        "backticks": ("\n", "`"),
        "calls in a row": ("", '{"name": "write", "arguments": {"path": "", "content": "", "options": {}}}\n'),
        "white space after a call": ('{"name": "get_time", "arguments": {}}', "\n "),
        "a long string": ('```json\n{"name": "write", "arguments": {"path": "', "x`"),
        "a long name": ('{"name": "', "a"),
        "nested values": ('{"name": "write", "arguments": {"path": ', "["),
        "escapes": ('{"name": "write", "arguments": {"path": "', "\\"),
    },
    LLAMA: {
        "tags": ("", "<|python_tag|>"),
        "brackets": ("", "{"),
        "white space": ("", " "),
        "calls": ("", '{"name": "get_time"};'),
        "semicolons": ('{"name": "get_time"}', ";"),
        "white space after a call": ('{"name": "get_time"}', " "),
        "nested values": ('{"name": "write", "parameters": {"path": ', "["),
    },
    MISTRAL: {
        "tags": ("", "[TOOL_CALLS]"),
        "names": ("", "[TOOL_CALLS]a"),
        "one name": ("[TOOL_CALLS]", "a"),
        "one identifier": ("[TOOL_CALLS]a[CALL_ID]", "a"),
        "white space": ("[TOOL_CALLS]", " "),
        "listed": ("[TOOL_CALLS] [", '{"name": "get_time"},'),
        "calls": ("", "[TOOL_CALLS]get_time[ARGS]{}"),
        "brackets": ("[TOOL_CALLS]get_time[ARGS]{", "["),
    },
}


CASES = [
    pytest.param(calls, name, prompt, id=f"{calls}, {name}, {'thinking' if prompt == OPENED else 'answering'}")
    for calls, texts in TEXTS.items()
    for name, (start, _) in texts.items()
    for prompt in ([CLOSED] if start else [OPENED, CLOSED])
]


@pytest.mark.parametrize(("calls", "name", "prompt"), CASES)
def test_a_long_text(calls, name, prompt):
    start, unit = TEXTS[calls][name]
    for size, length in ((N, N), (4, N // 4)):

        def read(text, size=size):
            one = parser(calls=calls, prompt=prompt)
            for at in range(0, len(text), size):
                one.push(text[at : at + size])
            one.finish()

        check_linear(read, lambda n: start + unit * (n // len(unit)), 500, long=length, seconds=SECONDS)
