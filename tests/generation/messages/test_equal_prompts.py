"""Library, server and replay make the same prompt, and the same completion, of the same messages."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.decode.drafters import Strategy
from dflash.errors import DFlashError
from dflash.evaluation.replay.replies import TurnReplies
from dflash.evaluation.replay.request_body import body_turn
from dflash.evaluation.replay.run import _prompt_ids
from dflash.generation.messages.row import ASSISTANT, CHAT, RESULT, SYSTEM, USER, Treatment
from dflash.generation.messages.table import ROWS
from dflash.generation.prompts import encode
from dflash.model.text.chat_template import ChatTemplate
from dflash.serve.limits import Limits
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.preparing.completions import ReadRequest

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}, **more}
    for name, more in (("ls", {}), ("city", {"defer_loading": True}), ("read", {"description": "Reads."}))
]
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}[{{ m.content }}]{% endfor %}"
)
EVERYTHING = (
    "{# developer #}{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}:"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %};{% endfor %}"
)
USER_SAYS = {"role": "user", "content": "Hi"}

texts = st.sampled_from(["", "a", "Two\n\nlines ", "<|im_end|>", "\u00e9\U0001f469\u200d\U0001f4bb"])


def parts(place):
    """Parts that are read in a place, and text parts of a Python caller without a type."""
    rows = [row for row in ROWS if row.api == CHAT and place in row.places and row.treatment is Treatment.READ]
    examples = [{"type": row.kind, **row.example} for row in rows]
    return st.lists(st.one_of(st.sampled_from(examples), texts.map(lambda text: {"text": text})), min_size=1, max_size=3)


def content(place):
    return st.one_of(texts, parts(place))


ARGUMENTS = ['{"path": "a", "n": 1e3}', '{"path": "half', "[1]", "", "{}", None, {"path": "a", "n": [1, 2]}]
functions = st.builds(lambda arguments: {"name": "ls", "arguments": arguments}, st.sampled_from(ARGUMENTS))
calls = st.one_of(
    functions.map(lambda function: {"id": "1", "type": "function", "function": function}),
    functions.map(lambda function: {"id": "1", **function}),
    texts.map(lambda text: {"id": "1", "type": "custom", "custom": {"name": "read", "input": text}}),
)
messages_of = {
    "system": st.builds(
        lambda role, said: {"role": role, "content": said}, st.sampled_from(["system", "developer"]), content(SYSTEM)
    ),
    "user": content(USER).map(lambda said: {"role": "user", "content": said}),
    "assistant": st.builds(
        lambda said, more: {"role": "assistant", "content": said, **more},
        st.one_of(st.none(), content(ASSISTANT)),
        st.one_of(
            st.just({}),
            st.lists(calls, max_size=2).map(lambda found: {"tool_calls": found}),
            functions.map(lambda function: {"function_call": function}),
            texts.map(lambda text: {"refusal": text}),
            texts.map(lambda text: {"reasoning_content": text}),
        ),
    ),
    "result": st.one_of(
        content(RESULT).map(lambda said: {"role": "tool", "tool_call_id": "1", "content": said}),
        texts.map(lambda text: {"role": "function", "name": "ls", "content": text}),
    ),
    "other": st.sampled_from([{"role": "robot", "content": "x"}, {"content": "x"}, {"role": "user", "content": 7}]),
}
conversations = st.lists(
    st.sampled_from(["system", "user", "user", "assistant", "result"]).flatmap(messages_of.get), min_size=1, max_size=6
)


def outcome(make):
    """Ids of a prompt, or None if it is refused."""
    try:
        return make()
    except DFlashError:
        return None


def library(lm, template, messages, tools):
    return encode(messages, lm.tokenizer, template, tools=tools)


def server(lm, template, messages, tools):
    request = parse_chat({"messages": messages, "tools": tools})
    return ReadRequest.of(request, lm.tokenizer, template, Limits(lm.context)).prompts[0]


def replayed(lm, template, messages, tools):
    class Model:
        tokenizer, context = lm.tokenizer, lm.context

    Model.template = template
    return _prompt_ids(Model, body_turn("turn", {"messages": messages, "tools": tools}), TurnReplies("turn")) or None


@pytest.fixture(scope="module", params=["demo", "alternating", "everything"])
def template(request, lm):
    source = {"alternating": ALTERNATING, "everything": EVERYTHING}.get(request.param)
    return lm.template if source is None else ChatTemplate(source, tokens={})


def check(lm, template, messages, tools):
    made = [outcome(lambda make=make: make(lm, template, messages, tools)) for make in (library, server, replayed)]
    assert made[0] == made[1], (lm.tokenizer.decode(made[0] or []), lm.tokenizer.decode(made[1] or []))
    assert made[2] == made[1], (lm.tokenizer.decode(made[2] or []), lm.tokenizer.decode(made[1] or []))


@settings(max_examples=200, deadline=None)
@given(messages=conversations, tools=st.sampled_from([[], TOOLS]))
def test_any_conversation_has_one_prompt_or_is_refused_everywhere(lm, template, messages, tools):
    check(lm, template, messages, tools)


SYSTEM_SAYS, DEVELOPER_SAYS = ({"role": role, "content": "Be brief."} for role in ("system", "developer"))


@pytest.mark.parametrize(
    "messages",
    [
        [DEVELOPER_SAYS, USER_SAYS],
        [SYSTEM_SAYS, DEVELOPER_SAYS, USER_SAYS],
        [USER_SAYS, SYSTEM_SAYS],
        [SYSTEM_SAYS, USER_SAYS, SYSTEM_SAYS, USER_SAYS],
    ],
)
def test_system_messages_in_any_place_are_accepted_everywhere(lm, messages):
    check(lm, lm.template, messages, [])
    assert lm.encode(messages) == server(lm, lm.template, messages, [])


@pytest.mark.parametrize("other", [{"role": "robot", "content": "x"}, {"content": "x"}, {"role": "user", "content": 7}])
def test_malformed_messages_are_refused_by_library_and_server(lm, other):
    for make in (library, server):
        assert outcome(lambda make=make: make(lm, lm.template, [other], [])) is None


@pytest.mark.parametrize("choice", ["none", "auto", None])
@pytest.mark.parametrize("offered", [[], TOOLS])
def test_a_tool_choice_has_one_meaning_in_library_and_server(lm, monkeypatch, choice, offered):
    monkeypatch.setattr("dflash.lm.finish_all", lambda _, completions: completions)
    mine = lm.generate([USER_SAYS], tools=offered, tool_choice=choice, logit_bias={5: 2}, seed=3, temperature=1)
    body = {"messages": [USER_SAYS], "tools": offered, "tool_choice": choice, "logit_bias": {"5": 2}, "seed": 3}
    read = ReadRequest.of(parse_chat({**body, "temperature": 1}), lm.tokenizer, lm.template, Limits(lm.context))
    (its,) = read.completions(Strategy())
    assert mine.session.sampling == its.session.sampling
    assert (lm.tokenizer.id_of("<tool_call>") in dict(mine.session.sampling.logit_bias)) == (choice == "none")
    call = f"</think>\n\n<tool_call>{json.dumps({'name': 'ls', 'arguments': {}})}</tool_call>"
    events = [[type(event) for event in each._parser.push(call)] for each in (mine, its)]
    assert events[0] == events[1]


def test_a_text_that_is_continued_has_no_barred_tokens(lm, monkeypatch):
    monkeypatch.setattr("dflash.lm.finish_all", lambda _, completions: completions)
    assert not lm.generate("Hi", tool_choice="none").session.sampling.logit_bias
