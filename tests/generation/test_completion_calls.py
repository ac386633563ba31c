"""Calls of a completion whose model writes a given text, token by token."""

import numpy as np
import pytest
from family_tokens import family_template, family_tokenizer
from parsing import TOOLS
from toy import Toy

from dflash.decode.engine import Engine
from dflash.decode.output_part import OutputPart
from dflash.decode.sampling.params import Sampling
from dflash.generation.completion import Completion
from dflash.generation.parsers import OutputFormat
from dflash.generation.recovery.special_tokens import opening_token
from dflash.generation.recovery.tool_call_prefix import opening

TIME = "get_time", "{}"
FENCE = '```json\n{"name": "get_time", "arguments": {}}\n```'
WRITTEN = {
    "llama3": ["<|python_tag|>", '{"name": "get_time", "parameters": {}}; {"name": "get_time", "parameters": {}}'],
    "mistral_list": ["[TOOL_CALLS]", ' [{"name": "get_time", "arguments": {}}, {"name": "get_time", "arguments": {}}]'],
    "mistral_args": ["[TOOL_CALLS]", "get_time", "[ARGS]", "{}", "[TOOL_CALLS]", "get_time", "[ARGS]", "{}"],
    "qwen2_5": [f"{FENCE}\n{FENCE}"],
}


def completed(family, parts, *, max_tokens=200, tools=TOOLS, **settings):
    """The completion of a model that writes these parts and ends."""
    tokenizer = family_tokenizer()
    ids = [token for part in parts for token in tokenizer.encode(part)]
    script = [1, *ids, tokenizer.eos, *[0] * max_tokens]

    def law(text):
        row = np.zeros(tokenizer.n_vocab, np.float32)
        row[script[len(text)]] = 50
        return row

    form = OutputFormat.of(family_template(family), tools)
    made = Completion(
        tokenizer, [1], sampling=Sampling(temperature=0), max_tokens=max_tokens, output_format=form, **settings
    )
    parts_read = []
    reader = made.session.read_output()
    for _, step in Engine(Toy(tokenizer.n_vocab, law=law)).run([made.session]):
        made.delta(step)
    for token in made.session.output_ids:
        reader.feed(token)
        parts_read.append(reader.part)
    return made, parts_read


@pytest.mark.parametrize("family", WRITTEN)
def test_control_tokens_of_calls_reach_the_parser(family):
    """Others are left out of the text, as ever; recoveries see the call, too."""
    made, parts = completed(family, WRITTEN[family])
    assert [(call.name, call.arguments) for call in made.output.tool_calls] == [TIME, TIME]
    assert made.output.content.strip() == ""
    assert {OutputPart.CALL, OutputPart.OPENING} & {*parts}
    other = "[ARGS]" if family in ("llama3", "qwen2_5") else "<|python_tag|>"
    assert completed(family, ["a", other, "b"])[0].text == "ab"
    assert completed(family, WRITTEN[family], tools=())[0].output is None


@pytest.mark.parametrize("family", WRITTEN)
def test_at_most_one_call(family):
    made, _ = completed(family, WRITTEN[family], max_calls=1)
    assert [(call.name, call.arguments) for call in made.output.tool_calls][:1] == [TIME]
    assert len(made.output.tool_calls) == 1
    assert made.session.finish_reason == "stop"


def test_the_last_allowed_call_keeps_its_closing_tag():
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    made, _ = completed("qwen2_5", [f"{call}\n{call}"], max_calls=1)
    assert made.text == call
    assert [(each.name, each.arguments) for each in made.output.tool_calls] == [TIME]


def test_the_token_that_opens_a_call():
    tokenizer = family_tokenizer()
    opened = {"llama3": "<|python_tag|>", "mistral_args": "[TOOL_CALLS]", "qwen2_5": "<tool_call>"}
    assert {family: opening_token(tokenizer, family_template(family)) for family in opened} == {
        family: tokenizer.id_of(text) for family, text in opened.items()
    }
    assert opening_token(tokenizer, None) == tokenizer.id_of("<tool_call>")


@pytest.mark.parametrize(
    ("family", "start"),
    [
        ("qwen2_5", '\n```json\n{"name": "get_weather", "arguments": {"city": '),
        ("mistral_args", '[TOOL_CALLS]get_weather[ARGS]{"city": '),
        ("mistral_list", None),
        ("llama3", None),
    ],
)
def test_a_stalled_call_is_opened_as_the_model_writes_it(family, start):
    """Templates that write no call after a text leave stalls alone."""
    opened = opening(family_tokenizer(), family_template(family), TOOLS[:1])
    if start is None:
        assert opened is None
        return
    text = family_tokenizer().decode([*opened.lead, *opened.call])
    assert text in (start.rstrip(), start)
    rest = ' "Oslo", "days": 1}}\n```' if family == "qwen2_5" else ' "Oslo", "days": 1}'
    made, _ = completed(family, [text + rest])
    assert [(call.name, call.parsed) for call in made.output.tool_calls] == [("get_weather", {"city": "Oslo", "days": 1})]
