"""Turns of agents on a real model: what it answers, what recoveries change, and how often they act on a good answer.

python benchmarks/agent_turns.py model.gguf --clients FOLDER --out turns.jsonl [--device cuda] [--seconds 240]
python benchmarks/agent_turns.py --of turns.jsonl --clients FOLDER

FOLDER has recordings of clients, CLIENT/SCENARIO.jsonl as `dflash bench --replay` reads them. `turn_tasks` has the tasks,
and `turn_kinds` the rules by which answers are counted. The first command writes a record for each answer as soon as it is
there, and goes on where an earlier run ended. The second one prints the tables.

Settings of a run are ``free``, ``required`` (a call must come) and ``strict`` (calls fit their schemas), the latter two on
turns that want a call, and the names of recoveries, with which all turns of ``free`` are answered again: the same seed gives
the same text up to an action.
"""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from turn_report import MODES, TARGETS, tables
from turn_tasks import CLIENTS, agent_turns

SEED = 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="GGUF file")
    parser.add_argument("--of", type=Path, help="print the tables of a file of records instead")
    parser.add_argument("--clients", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--only", default=",".join(CLIENTS), help="clients, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("turns.jsonl"), help="file of records")
    parser.add_argument("--settings", default=",".join((*MODES, *TARGETS)), help="settings in order, with commas")
    parser.add_argument("--temperatures", default="0,0.7")
    parser.add_argument("--turns", type=int, default=sys.maxsize, help="most turns of a setting")
    parser.add_argument("--max-tokens", type=int, default=640)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no answer after this time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--context", type=int, default=24576)
    parser.add_argument("--sequences", type=int, default=32, help="answers at a time")
    given = parser.parse_args()
    turns = agent_turns(given.clients, given.only.split(","))
    if given.of:
        return tables([json.loads(line) for line in given.of.read_text("utf-8").splitlines()], turns)
    return record(given, turns[: given.turns])


def record(given, turns):
    """Write a record for each answer that the file does not have yet."""
    import dflash
    from dflash.evaluation.environment import environment

    began = time.perf_counter()
    known = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()] if given.out.exists() else []
    done = {key_of(each) for each in known}
    work = [
        {"turn": turn.name, "setting": setting, "temperature": temperature}
        for temperature in map(float, given.temperatures.split(","))
        for setting in given.settings.split(",")
        for turn in turns
        if setting not in ("required", "strict") or turn.wants == "call"
    ]
    work = [each for each in work if key_of(each) not in done]
    by_name = {turn.name: turn for turn in turns}
    lm = dflash.load(
        given.model,
        device=given.device,
        threads=given.threads,
        context=given.context,
        sequences=given.sequences,
        prefix_cache=True,
    )
    print(f"loaded after {time.perf_counter() - began:.0f} s, {len(work)} answers to come", flush=True)
    for name in dict.fromkeys(turn.name.split("/")[0] for turn in turns):  # one prefill of what the turns of a client share
        first = next(turn for turn in turns if turn.name.startswith(f"{name}/"))
        lm.generate(first.messages, tools=first.tools, max_tokens=1)
    print(f"prompts of the clients after {time.perf_counter() - began:.0f} s", flush=True)
    about = {"model": Path(given.model).name, "device": lm.model.device, "commit": environment()["commit"]}
    lock, n = threading.Lock(), Counter()

    def answer(each):
        if time.perf_counter() - began > given.seconds:
            n["left out"] += 1
            return
        found = {**each, **answered(lm, by_name[each["turn"]], each["setting"], each["temperature"], given.max_tokens)}
        with lock, given.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps({**found, **about}) + "\n")
            n["answers"] += 1
            n["tokens"] += found["n_tokens"]
            if n["answers"] % 50 == 0:
                print(f"{dict(n)} after {time.perf_counter() - began:.0f} s", flush=True)

    with ThreadPoolExecutor(given.sequences) as threads:
        list(threads.map(answer, work))
    print(f"{dict(n)} after {time.perf_counter() - began:.0f} s", flush=True)


def answered(lm, turn, setting, temperature, max_tokens):
    """Return what a record has beside its setting."""
    from dflash.errors import RequestError

    tools = turn.tools
    if setting == "strict":
        tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in tools]
    began = time.perf_counter()
    try:
        found = lm.generate(
            turn.messages,
            tools=tools,
            tool_choice="required" if setting == "required" else None,
            recover="" if setting in MODES else setting,
            temperature=temperature,
            seed=SEED,
            max_tokens=max_tokens,
        )
    except RequestError as error:
        return {"error": str(error), "n_tokens": 0, "seconds": time.perf_counter() - began}
    return {
        "text": found.text,
        "content": found.content,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in found.tool_calls],
        "finish": found.finish_reason,
        "tokens": found.tokens,
        "n_tokens": len(found.tokens),
        "n_prompt": found.usage.prompt_tokens,
        "seconds": round(time.perf_counter() - began, 2),
        "actions": [asdict(each) for each in found.interventions],
    }


def key_of(each):
    """Return what tells records apart."""
    return each["turn"], each["setting"], each["temperature"]


if __name__ == "__main__":
    main()
