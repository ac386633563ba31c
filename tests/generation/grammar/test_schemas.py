"""Every finished output is valid: of many schemas, and tools of both forms, by a model that would write anything."""

import json

import pytest
from demo_text import DATA, demo_tokenizer
from jsonschema import Draft202012Validator
from long_form import LONG
from parsing import JSON, XML, parsed
from schemas import random_schema, random_tools, scribbler

from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.params import GrammarParams
from dflash.model.text.chat_template import ChatTemplate

PROMPT = [5, 6, 7]
TEMPERATURES = [0.0, 0.7, 1.0, 1.5]
TEMPLATES = {"xml": DATA / "demo" / "chat_template.jinja", "json": DATA / "templates" / "json_calls.jinja"}


def written(params, seeds, template=None, tools=lambda seed: (), max_tokens=600):
    """Sessions of these seeds, eight at a time; some draft. The prompt is text, so that the grammar begins at once."""
    toy, found = scribbler(), []
    tokenizer = demo_tokenizer()
    for seed in seeds:
        (grammar,) = grammars(params(seed), [(PROMPT, False)], tokenizer, template, tools(seed))
        sampling = Sampling(temperature=TEMPERATURES[seed % 4], seed=seed)
        strategy = Strategy(PromptLookup()) if seed % 3 else Plain()
        settings = {"sampling": sampling, "strategy": strategy, "max_tokens": max_tokens, "eos": tokenizer.eos_ids}
        found.append(Session(PROMPT, grammar=grammar, **settings))
    list(Engine(toy).run(found))
    assert [session.error for session in found] == [None] * len(found)
    assert toy.leaked == (0, 0, 0)
    return found


def text_of(session):
    assert session.stop_token in demo_tokenizer().eos_ids
    return demo_tokenizer().decode(session.output_ids[:-1])


def schema_params(seed):
    return GrammarParams(response_format={"type": "json_schema", "json_schema": {"schema": random_schema(seed)}})


@pytest.mark.parametrize("start", range(0, 500 if LONG else 300, 100))
def test_outputs_fit_their_schema(start):
    finished = 0
    for seed, session in enumerate(written(schema_params, range(start, start + 100)), start):
        if session.finish_reason == "stop":
            finished += 1
            Draft202012Validator(random_schema(seed)).validate(json.loads(text_of(session)))
    assert finished >= 95


def test_any_object_is_an_object():
    params = GrammarParams(response_format={"type": "json_object"})
    sessions = [one for one in written(lambda _: params, range(24)) if one.finish_reason == "stop"]
    assert len(sessions) >= 16
    assert all(isinstance(json.loads(text_of(session)), dict) for session in sessions)


def parsed_calls(text, form, tools):
    output = parsed(text, tools, calls=XML if form == "xml" else JSON)
    assert output.content.strip("\n") == ""
    assert all(call.complete for call in output.tool_calls)
    return [(call.name, call.parsed) for call in output.tool_calls]


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", "named"])
def test_calls_are_valid_200_of_200(form, choice):
    """Both forms and both choices together: 50 of each."""
    template = ChatTemplate(TEMPLATES[form].read_text(encoding="utf-8"), tokens={})

    def params(seed):
        named = {"type": "function", "function": {"name": random_tools(seed)[-1]["function"]["name"]}}
        return GrammarParams(tool_choice="required" if choice == "required" else named)

    for seed, session in enumerate(written(params, range(50), template, random_tools, max_tokens=4000)):
        calls = parsed_calls(text_of(session), form, random_tools(seed))
        assert len(calls) == 1 if choice == "named" else calls
        for name, arguments in calls:
            assert choice == "required" or name == random_tools(seed)[-1]["function"]["name"]
            (parameters,) = [
                each["function"]["parameters"] for each in random_tools(seed) if each["function"]["name"] == name
            ]
            Draft202012Validator(parameters).validate(arguments)
