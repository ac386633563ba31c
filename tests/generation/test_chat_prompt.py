"""System messages under another name and in other places than the first."""

import pytest

from dflash.errors import TemplateError
from dflash.generation.chat_prompt import chat_ids
from dflash.model.text.chat_template import ChatTemplate

SYSTEM = {"role": "system", "content": "Be brief."}
DEVELOPER = {**SYSTEM, "role": "developer"}
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
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


@pytest.mark.parametrize("messages", [[SYSTEM, {"role": "robot", "content": "x"}], [USER, SYSTEM, {"role": "robot"}]])
def test_what_is_refused_for_other_reasons_stays_refused(prompt, messages):
    with pytest.raises(TemplateError):
        prompt(messages)
