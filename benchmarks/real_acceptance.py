"""Drafts without a draft model on real text: lookup, combinations and adaptive, on edits of files, chat and agent turns.

python benchmarks/real_acceptance.py model.gguf --out steps.jsonl [--clients FOLDER] [--device cuda] [--seconds 200]
python benchmarks/real_acceptance.py --of steps.jsonl

An edit has a file of this repository in its prompt, and its answer repeats the file with a change. Agent turns are those of
`turn_tasks`, with recordings in FOLDER. The first command writes a record for each text and strategy, prompt after prompt,
and the second one prints the tables. Strategies take turns at each prompt, and their texts must be equal.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[1]

EDITS = {
    "dflash/decode/recoveries/intervention.py": "Add a field `seconds: float` after `step`, with its line in the docstring.",
    "dflash/decode/recoveries/empty_retry.py": "Rename the parameter `patience` to `limit` everywhere, and set it to 32.",
    "dflash/decode/recoveries/think_leak.py": "Rename the class `ThinkLeak` to `ReasoningLeak`, and its state alike.",
    "dflash/decode/recoveries/call_limits.py": "Remove the limit `prose` with all that belongs to it.",
    "dflash/decode/recoveries/repetitions.py": "Add type annotations to all local variables.",
    "dflash/decode/shared_prefix.py": "Add a function that returns the length of the common end of two sequences.",
    "dflash/generation/timings.py": "Add a field `total` to `Timings`: seconds from the queue to the last token.",
    "benchmarks/turn_tasks.py": "Replace each `dict[str, ...]` in annotations by `Mapping[str, ...]` with its import.",
}

QUESTIONS = (
    "What is the difference between a process and a thread? Give an example of when to use each.",
    "Write a Python function that returns the n most common words of a text file, and explain it.",
    "Explain how a hash table works, and what happens when two keys have the same hash.",
    "Compare SQL and NoSQL databases in a table with five rows, then say which one a small web shop should use.",
    "Write a polite e-mail to a customer whose delivery is two days late.",
    "What does `git rebase` do, and when should I not use it?",
    "Write a small HTML page with a form for name and e-mail address, and the JavaScript that checks the address.",
    "List ten rules for writing readable code, each with one sentence why.",
)

AT_ONCE = 2
"""Prompts of a comparison. Each begins with a warm-up of all strategies; records are written at its end."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="GGUF file")
    parser.add_argument("--of", type=Path, help="print the tables of a file of records instead")
    parser.add_argument("--out", type=Path, default=Path("steps.jsonl"), help="file of records")
    parser.add_argument("--clients", type=Path, help="folder of recordings; without it there are no agent turns")
    parser.add_argument("--only", default="pi,codex", help="clients, separated by commas")
    parser.add_argument("--cases", type=int, default=8, help="prompts of each kind")
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no comparison after this time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--context", type=int, default=8192)
    given = parser.parse_args()
    if given.of:
        return tables([json.loads(line) for line in given.of.read_text("utf-8").splitlines()])
    return measure(given)


def strategies():
    """Return the compared strategies by name, plain decoding first."""
    from dflash.decode.drafters.first_of import FirstOf
    from dflash.decode.drafters.prompt_lookup import PromptLookup

    return {
        "plain": "plain",
        **{f"lookup:{n}": PromptLookup(n_draft=n) for n in (3, 7, 15, 31)},
        "lookup:7, 4-grams": PromptLookup(min_ngram=4),
        "first(8-grams:31, 2-grams:3)": FirstOf(
            PromptLookup(min_ngram=8, max_ngram=16, n_draft=31), PromptLookup(n_draft=3)
        ),
        "adaptive": "adaptive",
    }


def cases_of(given):
    """Return the prompts of each kind, in turns, so that a run that is cut has some of all."""
    from turn_tasks import agent_turns

    from dflash.evaluation.prompt_sets import Case

    edits, chats, turns = [], [], []
    for path, change in EDITS.items():
        words = f"{change} Answer with the whole file in one block of code, and nothing else.\n\n```python\n"
        edits.append(Case(f"edit {Path(path).stem}", [user(f"{words}{(ROOT / path).read_text('utf-8')}```")]))
    for number, question in enumerate(QUESTIONS, 1):
        chats.append(Case(f"chat {number}", [user(question)]))
    if given.clients:
        found = agent_turns(given.clients, given.only.split(","))
        found = found[:: max(len(found) // given.cases, 1)]
        turns = [Case(f"agent {turn.name}", turn.messages, (), {"tools": turn.tools}) for turn in found]
    kinds = [each[: given.cases] for each in (edits, chats, turns)]
    groups = zip_longest(*([each[i : i + AT_ONCE] for i in range(0, len(each), AT_ONCE)] for each in kinds), fillvalue=[])
    return [group for row in groups for group in row if group]


def user(text):
    return {"role": "user", "content": text}


def measure(given):
    """Compare the strategies and write the records."""
    import dflash
    from dflash.decode import metrics
    from dflash.evaluation.environment import environment

    began = time.perf_counter()
    lm = dflash.load(given.model, device=given.device, threads=given.threads, context=given.context, sequences=1)
    about = {"model": Path(given.model).name, "device": lm.model.device, "commit": environment()["commit"]}
    print(f"loaded after {time.perf_counter() - began:.0f} s", flush=True)
    for group in cases_of(given):
        if time.perf_counter() - began > given.seconds:
            print(f"left out: {', '.join(case.name for case in group)}", flush=True)
            continue
        found = dflash.compare(lm, group, strategies(), max_tokens=given.max_tokens, temperature=given.temperature)
        with given.out.open("a", encoding="utf-8") as out:
            for row in found.rows:
                for name, one in zip(found.prompts, row.generations, strict=True):
                    steps = [step for step in one.steps if step.tokens]
                    record = {
                        **about,
                        "case": name,
                        "strategy": row.name,
                        "differs": next((at for case, at in row.differs if case == name), None),
                        "n_prompt": one.usage.prompt_tokens,
                        "n_tokens": len(one.tokens),
                        "n_timed": len(one.tokens) - len(steps[0].tokens),
                        "seconds": one.timings.decode,
                        "positions": metrics.counted(steps),
                        "steps": [[step.drafted, step.accepted] for step in steps],
                    }
                    out.write(json.dumps(record) + "\n")
        print(f"{', '.join(found.prompts)} after {time.perf_counter() - began:.0f} s", flush=True)


def tables(records):
    """Print Markdown tables for each kind of prompt."""
    groups = defaultdict(lambda: defaultdict(list))
    for each in records:
        groups[each["case"].split()[0]][each["strategy"]].append(each)
    for kind, rows in groups.items():
        rates = {name: rate(found) for name, found in rows.items()}
        best = max((name for name in rates if name != "adaptive"), key=rates.__getitem__)
        print(f"| {kind}, {len(rows['plain'])} prompts | tok/s | of plain | tokens a step | accepted | by position |")
        print("| --- | ---: | ---: | ---: | ---: | --- |")
        for name, found in rows.items():
            n_steps, drafted, accepted = (sum(numbers) for numbers in zip(*map(counts, found), strict=True))
            tokens = sum(each["n_tokens"] for each in found)
            share = f"{accepted / drafted:.0%}" if drafted else ""
            positions = " ".join(f"{part:.0%}" for part in by_position(found))
            numbers = f"{rates[name]:.0f} | {rates[name] / rates['plain']:.2f} | {tokens / n_steps:.2f}"
            print(f"| {name} | {numbers} | {share} | {positions} |")
        sizes = Counter(drafted for each in rows["adaptive"] for drafted, _ in each["steps"])
        chosen = ", ".join(f"{size}: {n}" for size, n in sorted(sizes.items()))
        print(f"\nadaptive reaches {rates['adaptive'] / rates[best]:.3f} of {best}; steps by draft tokens: {chosen}")
        texts = [each for found in rows.values() for each in found]
        differ = ", ".join(f"{each['strategy']} {each['case']}" for each in texts if each["differs"] is not None)
        print(f"texts that differ from plain: {differ or 'none'} of {len(texts)}\n")


def rate(found):
    """Return tokens a second after the first step, over all prompts."""
    return sum(each["n_timed"] for each in found) / sum(each["seconds"] for each in found)


def counts(record):
    """Return steps, draft tokens and accepted ones."""
    return len(record["steps"]), sum(step[0] for step in record["steps"]), sum(step[1] for step in record["steps"])


def by_position(found):
    """Return the acceptance rates at positions 1, 2, 3, 4, 6, 8, 12, ... that were drafted."""
    summed = [
        tuple(map(sum, zip(*each, strict=True)))
        for each in zip_longest(*(record["positions"] for record in found), fillvalue=(0, 0))
    ]
    shown = [position for position in (1, 2, 3, 4, 6, 8, 12, 16, 24, 31) if position <= len(summed)]
    return [summed[position - 1][0] / max(summed[position - 1][1], 1) for position in shown]


if __name__ == "__main__":
    main()
