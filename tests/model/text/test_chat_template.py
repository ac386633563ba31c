import copy
import json
import lzma
import sys
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pytest
from demo_text import DATA, demo_tokenizer, recorded_prompts

from dflash.errors import TemplateError
from dflash.model.text.chat_template import Abilities, ChatTemplate

sys.path.insert(0, str(DATA / "templates"))
from conversations import AGENT, CONVERSATIONS, HELLO, PARALLEL, SEARCH, WEATHER, call, user

PATHS = {
    "demo": DATA / "demo" / "chat_template.jinja",
    "json_calls": DATA / "templates" / "json_calls.jinja",
    "corners": DATA / "templates" / "corners.jinja",
}
TEMPLATES = {
    name: ChatTemplate(path.read_text(encoding="utf-8"), tokens=demo_tokenizer().special_texts())
    for name, path in PATHS.items()
}
RECORDED = {name: json.loads(lzma.decompress((DATA / "templates" / f"{name}.json.xz").read_bytes())) for name in TEMPLATES}
CASES = [(name, case) for name in TEMPLATES for case in CONVERSATIONS]


def plain(source):
    return ChatTemplate(source, tokens={})


@pytest.mark.parametrize(("name", "case"), CASES)
def test_same_as_transformers(name, case):
    messages, kwargs = CONVERSATIONS[case]
    wanted, before = RECORDED[name][case], copy.deepcopy((messages, kwargs))
    if "error" in wanted:
        with pytest.raises(TemplateError) as raised:
            TEMPLATES[name].render(messages, **kwargs)
        if wanted["error"] != "SecurityError":
            assert wanted["message"] in str(raised.value)
    else:
        assert TEMPLATES[name].render(messages, **kwargs) == wanted["text"]
    assert (messages, kwargs) == before


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("case", [case for case in CONVERSATIONS if case not in ("call-flat", "calls-none")])
def test_arguments_as_json_text(name, case):
    messages, kwargs = copy.deepcopy(CONVERSATIONS[case])
    for message in messages:
        for tool_call in message.get("tool_calls", []):
            tool_call["function"]["arguments"] = json.dumps(tool_call["function"]["arguments"])
    before, wanted = copy.deepcopy(messages), RECORDED[name][case]
    if "error" not in wanted:
        assert TEMPLATES[name].render(messages, **kwargs) == wanted["text"]
    assert messages == before


def test_flat_calls_have_json_text_too():
    messages = [user("go"), {"role": "assistant", "content": "ok", "tool_calls": [{"name": "f", "arguments": '{"x": 1}'}]}]
    assert TEMPLATES["demo"].render(messages) == RECORDED["demo"]["call-flat"]["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"a": ', r"messages\[1\].tool_calls\[1\].function.arguments is not valid JSON"),
        ("[1]", "arguments is a JSON list, wanted an object"),
        ('"{}"', "arguments is a JSON str, wanted an object"),
        ("9" * 5000, "arguments is not valid JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_malformed_arguments_of_calls_are_refused(arguments, message):
    bad = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(TemplateError, match=message):
        TEMPLATES["demo"].render([user("x"), {"role": "assistant", "tool_calls": [call("bare"), bad]}])


def test_empty_arguments_are_an_empty_object():
    calls = [{"function": {"name": "bare", "arguments": text}} for text in ("", " ", "{}")]
    text = TEMPLATES["demo"].render([user("x"), {"role": "assistant", "tool_calls": calls}])
    assert text.count("<function=bare>\n</function>") == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('No ' ~ messages[0].role) }}", "the chat template refused the messages: No user"),
        ("{{ nothing.at.all }}", "failed on the messages: 'nothing' is undefined"),
        ("a\n{% if %}", r"is not valid Jinja: Expected an expression, got 'end of statement block' \(line 2\)"),
        ("{% for x in y %}", r"is not valid Jinja: Unexpected end of template.* \(line 1\)"),
        ("{{ x | no_such_filter }}", "is not valid Jinja: No filter named 'no_such_filter'"),
        ("{% if true %}" * 3000 + "{% endif %}" * 3000, "nested too deeply"),
        ("{{ messages | tojson(indent='x', nonsense=1) }}", "failed on the messages: TypeError: "),
        ("{{ nothing | tojson }}", "failed on the messages: TypeError: .*Undefined"),
        ("{% include 'x' %}", "failed on the messages"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed on the messages: RecursionError"),
        ("{{ messages.append(1) }}", "failed on the messages: access to attribute 'append'"),
        ("{{ messages[0].update(role='x') }}", "failed on the messages: access to attribute 'update'"),
        ("{{ ''.__class__.__mro__ }}", "failed on the messages: access to attribute '__class__'"),
        ("{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}", "access to attribute '__globals__'"),
        ("{{ '{0.__class__}'.format(1) }}{{ '{0.__class__.x}'.format(1) }}", "failed on the messages"),
        ("{{ namespace(_x=1) }}", "a namespace can't hold '_x'"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "a namespace can't hold '_x'"),
    ],
)
def test_a_faulty_template_is_an_error_with_its_reason(source, message):
    with pytest.raises(TemplateError, match=message):
        plain(source).render(HELLO)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "messages is empty"),
        ((["hello"],), r"messages\[0\] is a str, wanted a mapping"),
        (([user("x"), None],), r"messages\[1\] is a NoneType"),
    ],
)
def test_malformed_messages_are_refused(arguments, message):
    with pytest.raises(TemplateError, match=message):
        TEMPLATES["demo"].render(*arguments)


def test_malformed_tools_are_refused():
    with pytest.raises(TemplateError, match=r"tools\[1\] is a function, wanted a mapping"):
        TEMPLATES["demo"].render(HELLO, tools=[WEATHER, test_malformed_tools_are_refused])
    with pytest.raises(TemplateError, match=r"documents\[0\] is a str"):
        TEMPLATES["demo"].render(HELLO, documents=["text"])


def test_messages_nested_too_deeply_are_refused():
    content = []
    for _ in range(100_000):
        content = [content]
    with pytest.raises(TemplateError, match="nested too deeply"):
        TEMPLATES["demo"].render([user(content)])


def test_settings_win_over_tokens_but_not_over_arguments():
    template = ChatTemplate("{{ eos_token }} {{ messages | length }} {{ self is defined }}", tokens={"eos_token": "<e>"})
    assert template.render(HELLO).startswith("<e> 1")
    assert template.render(HELLO, eos_token="<x>").startswith("<x> 1")
    assert template.render(HELLO, messages=[]).startswith("<e> 1")


def test_objects_are_made_plain():
    class Message(SimpleNamespace):
        def model_dump(self):
            return dict(self.__dict__)

    class Kind(str):
        def __str__(self):
            return "wrong"

    content = [{"type": "text", "text": Kind("plain"), "n": np.float32(0.5), "b": np.bool_(False), "o": object()}]
    source = "{{ messages[0].role }} {{ messages[0].content | tojson }}"
    assert plain(source).render([Message(role="user", content=content, name=None)]) == (
        'user [{"type": "text", "text": "plain", "n": 0.5, "b": false, "o": "<object>"}]'
    )


def test_templates_may_write_the_date():
    before = datetime.now().strftime("%Y-%m-%d %H")
    text = plain("{{ strftime_now('%Y-%m-%d %H') }}").render(HELLO)
    assert before <= text <= datetime.now().strftime("%Y-%m-%d %H")


def test_abilities_are_read_from_the_source_of_a_template():
    demo, json_calls, corners = (TEMPLATES[name].abilities for name in ("demo", "json_calls", "corners"))
    names = {"messages", "tools", "add_generation_prompt", "enable_thinking"}
    known = {"system": True, "tools": True, "parallel_calls": True, "thinking": True}
    assert demo == Abilities(**known, variables=demo.variables)
    assert demo.variables >= {*names, "preserve_thinking"}
    assert json_calls == Abilities(**known, variables=json_calls.variables)
    assert "preserve_thinking" not in json_calls.variables
    assert corners.variables >= {*names, "documents", "bos_token", "eos_token", "extra"}
    assert TEMPLATES["demo"].abilities is demo
    bare = plain("{% for m in messages %}{{ m.content }}{% endfor %}").abilities
    assert bare == Abilities(
        system=True, tools=False, parallel_calls=False, thinking=False, variables=frozenset({"messages"})
    )
    strict = plain("{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}").abilities
    assert not strict.system
    with pytest.raises(TemplateError, match="not valid Jinja"):
        _ = plain("{% if %}").abilities


def test_prompts_of_the_demo_goldens():
    chats = [prompt for prompt in recorded_prompts() if "messages" in prompt]
    assert len(chats) == 22
    for chat in chats:
        settings = {"tools": chat["tools"], "enable_thinking": chat["enable_thinking"]}
        assert TEMPLATES["demo"].render(chat["messages"], **settings) == chat["prompt"]


def test_a_prompt_is_the_start_of_the_next_one():
    template = TEMPLATES["demo"]
    for n in (2, 3):
        assert template.render(AGENT[:n], tools=[WEATHER], add_generation_prompt=False) in template.render(
            AGENT, tools=[WEATHER]
        )
    prompt = template.render(PARALLEL, tools=[WEATHER, SEARCH])
    ids = demo_tokenizer().encode(prompt)
    assert demo_tokenizer().decode(ids) == prompt


def test_a_number_that_python_does_not_convert_is_an_error_of_the_template():
    with pytest.raises(TemplateError, match="can't be compiled: Exceeds the limit"):
        ChatTemplate("{{ " + "1" * 5000 + " }}", tokens={}).render([{"role": "user", "content": "a"}])
