"""Reasoning ends in one place for parser, budget, guards, grammars and usage: at its closing tag or where a call begins."""

from dataclasses import dataclass

import pytest
from demo_text import DATA, demo_tokenizer

from dflash.decode.output_part import OutputPart
from dflash.decode.recoveries.base import PASS, Inject
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.parsers import OutputFormat
from dflash.generation.parsers.output_parser import TextReader
from dflash.model.text.chat_template import ChatTemplate
from dflash.serve.usage import TokenCounts

TEMPLATES = {
    "xml": ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={}),
    "json": ChatTemplate((DATA / "templates" / "json_calls.jinja").read_text(encoding="utf-8"), tokens={}),
}
TEXT = {"type": "string"}
PARAMETERS = {"type": "object", "properties": {"path": TEXT, "content": TEXT}, "required": ["path"]}
FREE = [{"type": "function", "function": {"name": "write_file", "parameters": PARAMETERS}}]
TOOLS = [{"type": "function", "function": {"name": "write_file", "parameters": PARAMETERS, "strict": True}}]
ASK = [{"role": "user", "content": "Write a story to a.txt"}]
OPENED = {
    "xml": "<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=content>\nOnce upon",
    "json": '<tool_call>\n{"name": "write_file", "arguments": {"path": "a.txt", "content": "Once upon',
}
CLOSED = {
    "xml": f"{OPENED['xml']} </think> <think>\n</parameter>\n</function>\n</tool_call>",
    "json": f'{OPENED["json"]} </think> <think>"}}}}\n</tool_call>',
}
THOUGHTS = ["I write <tool_call> here.", "<tool_call>\n<function=unknown>", "<tool_call><tool_call>"]
THOUGHTS += ['<tool_call>\n{"name": "none"}']


@dataclass(frozen=True)
class Say:
    """Stands for a model that writes these tokens after `at` tokens."""

    ids: tuple
    at: int = 3

    def start(self, session):
        return _Say(self)


class _Say:
    name, restarts = "Say", False

    def __init__(self, say):
        self.say, self.done = say, False

    def check_step(self, session, accepted):
        if self.done or session.n_tokens + len(accepted.tokens) < self.say.at:
            return PASS
        self.done = True
        return Inject(len(accepted.tokens), self.say.ids, "scripted")


def say(text):
    return Say(tuple(demo_tokenizer().encode(text)))


def parts(text, form):
    output_format = OutputFormat.of(TEMPLATES[form], TOOLS)
    reader = TextReader(demo_tokenizer(), output_format.parser("<think>\n", thinking=True))
    for token in demo_tokenizer().encode(text):
        reader.feed(token)
        yield reader.part


@pytest.mark.parametrize("form", TEMPLATES)
def test_the_parts_of_an_output(form):
    found = [*parts(f"Hm {CLOSED[form]} bye", form)]
    order = [part for i, part in enumerate(found) if i == 0 or found[i - 1] is not part]
    assert order == [OutputPart.REASONING, OutputPart.OPENING, OutputPart.CALL, OutputPart.CONTENT]
    for thought in THOUGHTS:
        assert {*parts(f"Hm {thought} hm", form)} <= {OutputPart.REASONING, OutputPart.OPENING}
        assert [*parts(f"Hm {thought} hm", form)][-1] is OutputPart.REASONING


def test_a_budget_closes_no_reasoning_inside_a_call(lm):
    settings = {"tools": FREE, "max_tokens": 60}
    for text in (OPENED["xml"], f"\n</think>\n\n{OPENED['xml']} <think> not closed"):
        free = lm.generate(ASK, recover=[say(text)], **settings)
        held = lm.generate(ASK, recover=[say(text), "think:6"], **settings)
        assert held.tokens == free.tokens
        assert held.tool_calls[0].arguments.startswith('{"path": "a.txt", "content": "Once upon')
    thought = lm.generate(ASK, recover=[say(THOUGHTS[0]), "think:12"], **settings)
    assert "</think>" in thought.text, "text that holds a tag is reasoning, which is closed"


def test_a_guard_of_calls_in_reasoning(lm):
    settings = {"tools": FREE, "max_tokens": 60}
    found = lm.generate(ASK, recover=[say(OPENED["xml"]), "think-leak"], **settings)
    assert (found.finish_reason, found.tool_calls, found.content) == ("length", [], "")
    assert "<tool_call>" not in found.reasoning
    assert lm.generate(ASK, recover=[say(THOUGHTS[0]), "think-leak"], **settings).interventions[-1].recovery != "ThinkLeak"


@pytest.mark.parametrize("strategy", ["plain", "lookup"])
def test_the_count_of_reasoning_tokens_ends_where_a_call_begins(lm, strategy):
    stream = lm.stream(ASK, recover=[say(OPENED["xml"])], tools=FREE, max_tokens=60, strategy=strategy)
    for _ in stream:
        pass
    n = TokenCounts.of([stream._completion]).reasoning
    assert n == stream.generation.tokens.index(demo_tokenizer().id_of("<tool_call>"))


def start(form, **fields):
    params = GrammarParams(**fields)
    ids = demo_tokenizer().encode(TEMPLATES[form].render(ASK) + ("" if form == "xml" else "<think>"))
    return grammars(params, [(ids, True)], demo_tokenizer(), TEMPLATES[form], TOOLS)[0].start()


def advance(matcher, text):
    ids = demo_tokenizer().encode(text)
    n = next((n for n, token in enumerate(ids) if not matcher.advance(token)), len(ids))
    return demo_tokenizer().decode(ids[n:])


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}, {"response_format": {"type": "json_object"}}], ids=str)
def test_grammars_bind_a_call_that_begins_in_reasoning(form, fields):
    matcher = start(form, **fields)
    assert advance(matcher, f"Hm {OPENED[form]}") == ""
    assert matcher.binds
    assert advance(start(form, **fields), f"Hm {OPENED[form].replace('write', 'read')}") != ""
    tokens = demo_tokenizer().encode(f"Hm <tool_call>{OPENED[form][11:40]}")
    walker, fresh = start(form, **fields), start(form, **fields)
    for n, token in enumerate(tokens):  # every way back leads to the same place
        assert walker.advance(token)
        walker.rollback(n + 1)
        assert [*map(walker.advance, tokens[: n + 1])] == [True] * (n + 1)
        assert fresh.advance(token)
        assert walker.free or (walker.mask() == fresh.mask()).all()


@pytest.mark.parametrize("form", TEMPLATES)
def test_no_output_ends_in_reasoning_before_an_answer_that_is_needed(form):
    end = demo_tokenizer().eos_ids[0]
    for fields in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}, {"regex": "yes|no"}):
        matcher = start(form, **fields)
        assert not matcher.is_accepting
        assert not matcher.mask()[end // 32] >> end % 32 & 1
        assert not matcher.advance(end)
        assert matcher.advance(demo_tokenizer().encode("Hm")[0])
        assert not matcher.binds
    assert start(form).advance(end), "with strict tools alone the model may stay silent"
    assert advance(start(form, regex="yes|no"), "Hm <tool_call>") == "<tool_call>", "no call can follow"


def test_constrained_answers_are_never_empty(lm):
    """End tokens are made likely: without the mask the output ends in its reasoning."""
    bias = dict.fromkeys(lm.tokenizer.eos_ids, 30)
    free = lm.generate(ASK, logit_bias=bias, max_tokens=40)
    assert free.content == ""
    found = lm.generate(ASK, logit_bias=bias, regex="yes|no", recover="think:4", max_tokens=60)
    assert (found.content, found.finish_reason) in (("yes", "stop"), ("no", "stop"))
