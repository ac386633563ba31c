"""Cases of the Berkeley Function Calling Leaderboard through any server of OpenAI's API: one function, one call.

python -m dflash.serve model.gguf --port 18301 --no-access-log &
python benchmarks/bfcl.py http://127.0.0.1:18301 --cases FOLDER/BFCL_v4_simple_python.json [--first 100] [--modes free]

The package `bfcl-eval` ships the cases (`bfcl_eval/data`), with the answers in `possible_answer` beside them. Modes are
``free`` (the model decides), ``required`` (it must call) and ``strict`` (its arguments must fit the schema, too).

A call is right by the leaderboard's rule for Python: its function is the offered one, every argument is known, has the type
of its parameter and one of the allowed values, and parameters that are left out may be. Strings are compared without case,
blanks and ``,./-_*^``. Dots in names are underscores, as the API wants. Prints how many calls of each mode are right.
"""

import argparse
import collections
import json
import re
import time
from pathlib import Path

import httpx

from dflash.evaluation.prompt_layouts import tool

PYTHON = {"integer": int, "number": float, "string": str, "boolean": bool, "array": list, "object": dict}
MODES = ("free", "required", "strict")


def body_of(case, mode, model):
    """Return the request of a case."""
    (function,) = case["function"]
    offered = tool(function)
    function = offered["function"]
    if mode == "strict":
        function["strict"] = True
        function["parameters"] = {**function["parameters"], "additionalProperties": False}
    return {
        "model": model,
        "messages": case["question"][0],
        "tools": [offered],
        "tool_choice": "auto" if mode == "free" else "required",
        "temperature": 0,
        "max_tokens": 256,
    }


def fault_of(case, answer, calls):
    """Return why calls are wrong, in a word or two; an empty text if they are right."""
    ((name, allowed),) = answer[0].items()
    if len(calls) != 1:
        return "no call" if not calls else "several calls"
    if calls[0]["name"] != name.replace(".", "_"):
        return "function"
    try:
        given = json.loads(calls[0]["arguments"] or "{}")
    except ValueError:
        return "no JSON"
    parameters = tool(case["function"][0])["function"]["parameters"]
    known = parameters["properties"]
    if not isinstance(given, dict) or any(key not in given for key in parameters.get("required", [])):
        return "missing"
    for key, value in given.items():
        if key not in known or key not in allowed:
            return "unknown"
        if not has_type(value, known[key], allowed[key]):
            return "type"
        if not is_one_of(value, allowed[key]):
            return "value"
    return "missing" if any(key not in given and "" not in values for key, values in allowed.items()) else ""


def has_type(value, schema, allowed):
    """Return True if a value has the type of its parameter, or that of the allowed values where it differs."""
    wanted = PYTHON.get(schema.get("type"), str)
    value = float(value) if wanted is float and type(value) is int else value
    return type(value) in (wanted, next((type(each) for each in allowed if each != ""), wanted))


def is_one_of(value, allowed):
    """Return True if a value is among the allowed ones."""
    if isinstance(value, dict):
        return any(isinstance(each, dict) and fields_fit(value, each) for each in allowed)
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        lists = (each for each in allowed if isinstance(each, list) and len(each) == len(value))
        return any(all(map(fields_fit, value, each)) for each in lists)
    return plain(value) in [plain(each) for each in allowed]


def fields_fit(value, allowed):
    """Return True if every field of an object has an allowed value, and those that are left out may be."""
    if any(key not in allowed or plain(field) not in map(plain, allowed[key]) for key, field in value.items()):
        return False
    return all(key in value or "" in values for key, values in allowed.items())


def plain(value):
    """Return a value for comparison: strings in one case, without blanks and punctuation."""
    if isinstance(value, str):
        return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"')
    return [plain(each) for each in value] if isinstance(value, list) else value


def lines_of(path, first, skip):
    """Return the objects of a file with one in each line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[skip : skip + first]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--cases", type=Path, required=True, help="file of the cases")
    parser.add_argument("--first", type=int, default=100, help="number of cases (100)")
    parser.add_argument("--skip", type=int, default=0, help="number of cases before them")
    parser.add_argument("--modes", default=",".join(MODES), help="modes, separated by commas")
    parser.add_argument("--model", default="local", help="name of the model in requests")
    parser.add_argument("--out", type=Path, help="file for a line of JSON for each answer; what it has is not asked again")
    arguments = parser.parse_args()
    cases = lines_of(arguments.cases, arguments.first, arguments.skip)
    answers = lines_of(arguments.cases.parent / "possible_answer" / arguments.cases.name, arguments.first, arguments.skip)
    with httpx.Client(base_url=arguments.url, timeout=600) as client:
        for mode in arguments.modes.split(","):
            run(client, mode, list(zip(cases, answers, strict=True)), arguments)


def run(client, mode, pairs, arguments):
    """Send all cases in one mode and print the result."""
    lines = arguments.out.read_text("utf-8").splitlines() if arguments.out and arguments.out.exists() else []
    known = {each["id"]: each["fault"] for each in map(json.loads, lines) if each["mode"] == mode}
    faults, seconds = collections.Counter(known[case["id"]] for case, _ in pairs if case["id"] in known), 0.0
    for case, answer in pairs:
        if case["id"] in known:
            continue
        began = time.perf_counter()
        reply = client.post("/v1/chat/completions", json=body_of(case, mode, arguments.model))
        seconds += time.perf_counter() - began
        if reply.status_code >= 500:  # a server that loads or is ill has not answered
            reply.raise_for_status()
        message = reply.json()["choices"][0]["message"] if reply.status_code == 200 else {}
        calls = [call["function"] for call in message.get("tool_calls") or []]
        fault = fault_of(case, answer["ground_truth"], calls) if reply.status_code == 200 else f"status {reply.status_code}"
        faults[fault] += 1
        if arguments.out:
            record = {"mode": mode, "id": case["id"], "fault": fault, "calls": calls, "content": message.get("content")}
            with arguments.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
    wrong = ", ".join(f"{n} {fault}" for fault, n in faults.most_common() if fault)
    print(f"{mode}: {faults['']} of {len(pairs)} right in {seconds:.0f} s; wrong: {wrong or 'none'}", flush=True)


if __name__ == "__main__":
    main()
