"""System messages under another name and in other places than the first."""

import json
from inspect import signature

import pytest

from dflash.errors import RequestError, TemplateError
from dflash.generation import prompts
from dflash.generation.messages import chat_prompt
from dflash.generation.messages.chat_prompt import chat_ids, chat_text
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.written_numbers import written_float

SYSTEM = {"role": "system", "content": "Be brief."}
DEVELOPER = {**SYSTEM, "role": "developer"}
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
PARTS = {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]}


def reminder(text):
    return {"role": "user", "content": f"<system-reminder>\n{text}\n</system-reminder>"}


@pytest.fixture
def prompt(lm):
    return lambda messages, template=lm.template: chat_ids(lm.tokenizer, template, messages, max_tokens=1000)


@pytest.mark.parametrize(
    ("messages", "same_as"),
    [
        ([DEVELOPER, USER], [SYSTEM, USER]),
        ([SYSTEM, PARTS, USER], [{"role": "system", "content": "Be brief.\n\nBe\nkind."}, USER]),
        ([SYSTEM, USER, PARTS], [SYSTEM, USER, reminder("Be\nkind.")]),
        ([USER, DEVELOPER, ANSWER, USER], [USER, reminder("Be brief."), ANSWER, USER]),
        ([SYSTEM, USER, ANSWER, USER, SYSTEM, DEVELOPER], [SYSTEM, USER, ANSWER, USER, *[reminder("Be brief.")] * 2]),
        ([SYSTEM, USER], [SYSTEM, USER]),
    ],
)
def test_what_the_template_refuses_is_rendered_in_place(prompt, messages, same_as):
    before = [dict(message) for message in messages]
    assert prompt(messages) == prompt(same_as)
    assert messages == before


def test_a_template_that_takes_them_gets_them_as_they_are(lm, prompt):
    template = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{# developer #}", tokens={})
    assert (
        lm.tokenizer.decode(prompt([DEVELOPER, USER, SYSTEM], template)) == "developer:Be brief.;user:Hi;system:Be brief.;"
    )


ALTERNATING = ChatTemplate(
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}[{{ m.content }}]{% endfor %}",
    tokens={},
)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([SYSTEM, USER], "[Be brief.\n\nHi]"),
        ([SYSTEM, USER, ANSWER, USER], "[Be brief.\n\nHi][Hello][Hi]"),
        ([SYSTEM, USER, ANSWER, PARTS, USER], "[Be brief.\n\nBe\nkind.\n\nHi][Hello][Hi]"),
    ],
)
def test_a_template_without_system_messages_gets_them_in_the_first_user_message(messages, text):
    assert chat_text(ALTERNATING, messages) == text
    for refused in ([SYSTEM, ANSWER], [SYSTEM], [SYSTEM, USER, USER]):
        with pytest.raises(TemplateError, match="Roles must alternate"):
            chat_text(ALTERNATING, refused)


@pytest.mark.parametrize("messages", [[SYSTEM, {"role": "robot", "content": "x"}], [USER, SYSTEM, {"role": "robot"}]])
def test_what_is_refused_for_other_reasons_stays_refused(prompt, messages):
    with pytest.raises(TemplateError):
        prompt(messages)


NUMBERS = ["1000.0", "1e3", "1E+3", "0.10", "-0", "-0.0", "7", "1" * 30, "9" * 5000, "1" * 30 + ".5", "1.5e-7"]


def rendered(lm, arguments):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    ids = chat_ids(lm.tokenizer, lm.template, [USER, {**ANSWER, "tool_calls": [call]}], max_tokens=9999)
    assert call["function"]["arguments"] == arguments
    return lm.tokenizer.decode(ids)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_in_arguments_stay_as_they_were_written(lm, number):
    text = rendered(lm, f'{{"n": {number}, "text": "1e3 \\u00e9"}}')
    assert f"<parameter=n>\n{number}\n</parameter>\n<parameter=text>\n1e3 \u00e9\n</parameter>" in text


def test_numbers_inside_of_objects_stay_as_they_were_written(lm):
    text = rendered(
        lm, '{"points": [1e3,{"x \\u00e9":2E0, "y": [-0, 7, 1.0, "1e3 \\"", true]}], "flag": true, "plain": {"a":1.5}}'
    )
    points = '[1e3, {"x \u00e9": 2E0, "y": [-0, 7, 1.0, "1e3 \\"", true]}]'
    assert f"<parameter=points>\n{points}\n</parameter>\n<parameter=flag>\ntrue\n" in text
    assert '<parameter=plain>\n{"a": 1.5}\n</parameter>' in text


@pytest.mark.parametrize("number", ["1000.0", "1e3", "0.10", "-0.0", "7", "1.5e-7", "1e999"])
def test_numbers_of_arguments_that_were_parsed_with_the_body(lm, number):
    text = rendered(lm, json.loads(f'{{"n": {number}, "inside": [{{"x": {number}}}]}}', parse_float=written_float))
    assert f'<parameter=n>\n{number}\n</parameter>\n<parameter=inside>\n[{{"x": {number}}}]\n' in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
            r"\[1\]\.content\[1\].type: 'image_url' can't be read here, only text",
        ),
        (
            [{"type": "input_audio", "input_audio": {}}],
            r"\[1\]\.content\[0\].type: 'input_audio' can't be read here, only text",
        ),
        ([{"type": "image"}], r"\[1\]\.content\[0\].type: 'image' is not known in a message of the user"),
        ([{"type": "text", "text": 7}], r"\[1\]\.content\[0\].text: must be a string, got 7"),
        ([b"png"], r"\[1\]\.content\[0\]: must be a JSON object, got b'png'"),
        ({"url": "x"}, r"\[1\]\.content: must be a string or an array of parts"),
        (object(), r"\[1\]\.content: must be a string or an array of parts, got <object"),
    ],
)
def test_content_that_is_no_text_is_refused_by_place_and_kind(lm, content, message):
    messages = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": content}]
    for call in (lm.encode, lambda messages: lm.generate(messages, max_tokens=1)):
        with pytest.raises(RequestError, match="messages" + message):
            call(messages)


RENDERING = prompts.encode, chat_prompt.chat_ids, chat_prompt.chat_text, chat_prompt._rendered, ChatTemplate.render


@pytest.mark.parametrize(
    "name", sorted({name for function in RENDERING for name in signature(function).parameters} - {"tools"})
)
def test_a_setting_of_the_template_may_have_any_name(lm, name):
    """Names of the parameters on the way to the template, too: clients choose these names."""
    ids = prompts.encode([USER], lm.tokenizer, lm.template, settings={name: []})
    assert ids == chat_ids(lm.tokenizer, lm.template, [USER], settings={name: []})
    assert lm.tokenizer.decode(ids).startswith("<|im_start|>")


def test_tools_are_no_setting_of_the_template(lm):
    with pytest.raises(RequestError, match="pass them as tools"):
        lm.generate([USER], chat_template_kwargs={"tools": [TOOL]})
    assert lm.encode([USER], tools=[TOOL]) == prompts.encode([USER], lm.tokenizer, lm.template, tools=[TOOL])
    assert len(lm.encode([USER], tools=[TOOL])) > len(lm.encode([USER])) + 50
