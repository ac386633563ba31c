"""Published models: calls that Qwen2.5-Coder writes are read, and those that it must write are written."""

import pytest
from real_models import DEVICE, THREADS, path_of, references_of

import dflash
from dflash.generation.parsers import OutputFormat, ParsedOutput

pytestmark = pytest.mark.real

CALLS = {9: ("read_file", {"path": "src/main.py"}), 10: ("run", {"command": "pytest", "timeout": 60})}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": [next(iter(properties))]},
        },
    }
    for name, description, properties in (
        ("read_file", "Read a file of the project.", {"path": {"type": "string", "description": "Path of the file"}}),
        (
            "run",
            "Run a shell command and return its output.",
            {"command": {"type": "string"}, "timeout": {"type": "integer"}},
        ),
    )
]


@pytest.fixture(scope="module")
def coder():
    return dflash.load(path_of("coder"), device=DEVICE, threads=THREADS, context=2048)


def test_recorded_outputs_are_calls_or_text(coder):
    arrays, prompts = references_of("coder")
    for number in prompts:
        text = coder.tokenizer.decode(arrays[f"{number}.output_ids"].tolist(), skip_special=True, continues=True)
        for size in (1, 7, len(text)):
            parser = OutputFormat.of(coder.template, TOOLS).parser("")
            events = [event for at in range(0, len(text), size) for event in parser.push(text[at : at + size])]
            output = ParsedOutput.of(events + parser.finish())
            wanted = [CALLS[number]] if number in CALLS else []
            assert [(call.name, call.parsed) for call in output.tool_calls] == wanted, number
            assert output.content == ("" if wanted else text)


@pytest.mark.parametrize("strategy", ["plain", "lookup"])
@pytest.mark.parametrize("number", CALLS)
def test_free_and_required_calls(coder, number, strategy):
    _, prompts = references_of("coder")
    for choice in (None, "required", {"type": "function", "function": {"name": CALLS[number][0]}}):
        made = coder.generate(
            prompts[number]["messages"], tools=TOOLS, tool_choice=choice, strategy=strategy, temperature=0, max_tokens=100
        )
        assert [(call.name, call.parsed) for call in made.tool_calls] == [CALLS[number]], choice
        assert (made.content, made.finish_reason) == ("", "tool_calls")
