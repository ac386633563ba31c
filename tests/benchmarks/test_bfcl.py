"""The rule by which a call of the function calling benchmark is right."""

import argparse
import sys
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import bfcl

CASE = {
    "id": "a",
    "question": [[{"role": "user", "content": "?"}]],
    "function": [
        {
            "name": "geo.area",
            "parameters": {
                "type": "dict",
                "properties": {
                    "base": {"type": "float"},
                    "unit": {"type": "string"},
                    "sides": {"type": "array", "items": {"type": "integer"}},
                    "box": {"type": "dict", "properties": {"w": {"type": "tuple"}}},
                },
                "required": ["base"],
            },
        }
    ],
}
ANSWER = [
    {"geo.area": {"base": [10.0], "unit": ["sq. cm", ""], "sides": [[1, 2], ""], "box": [{"w": [1], "h": [2, ""]}, ""]}}
]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ('{"base": 10}', ""),
        ('{"base": 10.0, "unit": "SQ-CM", "sides": [1, 2], "box": {"w": 1}}', ""),
        ('{"base": 11}', "value"),
        ('{"base": "10"}', "type"),
        ('{"unit": "sq cm"}', "missing"),
        ('{"base": 10, "sides": [2, 1]}', "value"),
        ('{"base": 10, "box": {"h": 2}}', "value"),
        ('{"base": 10, "color": "red"}', "unknown"),
        ('{"base": 10', "no JSON"),
        ("[]", "missing"),
    ],
)
def test_a_call_is_right_if_every_argument_is(arguments, fault):
    assert bfcl.fault_of(CASE, ANSWER, [{"name": "geo_area", "arguments": arguments}]) == fault


def test_one_call_of_the_function_is_wanted():
    right = {"name": "geo_area", "arguments": '{"base": 10}'}
    assert bfcl.fault_of(CASE, ANSWER, []) == "no call"
    assert bfcl.fault_of(CASE, ANSWER, [right, right]) == "several calls"
    assert bfcl.fault_of(CASE, ANSWER, [{**right, "name": "area"}]) == "function"
    strict_answer = [{"geo.area": {"base": [10.0], "unit": ["cm"]}}]
    assert bfcl.fault_of(CASE, strict_answer, [right]) == "missing"


def test_a_case_becomes_a_request_without_being_changed():
    free, strict = (bfcl.body_of(CASE, mode, "m") for mode in ("free", "strict"))
    assert (free["tool_choice"], strict["tool_choice"]) == ("auto", "required")
    (tool,) = free["tools"]
    properties = tool["function"]["parameters"]["properties"]
    assert (tool["function"]["name"], properties["base"], properties["box"]["type"]) == (
        "geo_area",
        {"type": "number"},
        "object",
    )
    assert properties["box"]["properties"]["w"]["type"] == "array"
    assert strict["tools"][0]["function"]["strict"] is True
    assert CASE["function"][0]["parameters"]["type"] == "dict", "the case is not changed"


def test_a_refusal_is_a_wrong_answer_and_a_loading_server_none():
    given = argparse.Namespace(out=None, model="local")

    def run(status):
        transport = httpx.MockTransport(lambda _: httpx.Response(status, json={}))
        with httpx.Client(transport=transport, base_url="http://host") as client:
            return bfcl.run(client, "free", [(CASE, {"ground_truth": ANSWER})], given)

    run(400)
    with pytest.raises(httpx.HTTPStatusError):
        run(503)
