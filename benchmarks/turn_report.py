"""Tables of recorded agent turns: kinds of answers, and what each recovery changed."""

from collections import Counter

from turn_kinds import KINDS, is_right, kind_of

MODES = "free", "required", "strict"

TARGETS = {"stall": "announces", "loop": "loops", "min:8": "empty", "empty": "empty"}
"""Kind of answer that each recovery is for."""


def tables(records, turns):
    """Print Markdown tables of records; `turns` are those that they answer."""
    by_name = {turn.name: turn for turn in turns}
    judged = {}
    for each in records:
        turn = by_name.get(each["turn"])
        if turn is None or "error" in each:
            continue
        kind, fault = kind_of(each, turn.tools)
        judged[each["setting"], each["temperature"], each["turn"]] = each | {
            "kind": kind,
            "fault": fault,
            "wants": turn.wants,
            "right": is_right(kind, turn.wants),
        }
    errors = Counter(each["error"] for each in records if "error" in each)
    for line in (*_answers(judged), "", *_recoveries(judged), *(f"{n} refused: {error}" for error, n in errors.items())):
        print(line)


def _answers(judged):
    yield f"| turn wants | setting | temperature | turns | right | {' | '.join(KINDS)} | invalid because of |"
    yield f"| --- | --- {'| ---: ' * (len(KINDS) + 3)}| --- |"
    groups = dict.fromkeys((each["wants"], key[0], key[1]) for key, each in judged.items() if key[0] in MODES)
    for wants, setting, temperature in sorted(groups, key=lambda key: (key[0] != "call", MODES.index(key[1]), key[2])):
        found = [each for key, each in judged.items() if (each["wants"], *key[:2]) == (wants, setting, temperature)]
        kinds = Counter(each["kind"] for each in found)
        faults = Counter(each["fault"] for each in found if each["kind"] == "invalid")
        cells = (wants, setting, temperature, len(found), sum(each["right"] for each in found))
        why = ", ".join(f"{fault} {n}" for fault, n in faults.most_common())
        yield _row(*cells, *(kinds[kind] or "" for kind in KINDS), why)


def _recoveries(judged):
    yield "| recovery | temp. | turns | target | changed | on target | on right ones | right after | tokens | became |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for setting, temperature in dict.fromkeys(key[:2] for key in judged if key[0] not in MODES):
        pairs = [
            (judged["free", temperature, key[2]], each)
            for key, each in judged.items()
            if key[:2] == (setting, temperature) and ("free", temperature, key[2]) in judged
        ]
        target = TARGETS.get(setting, "")
        acted = [(before, after) for before, after in pairs if after["actions"] and before["tokens"] != after["tokens"]]
        changes = Counter(f"{before['kind']} to {after['kind']}" for before, after in acted)
        yield _row(
            f"`{setting}`",
            temperature,
            len(pairs),
            sum(before["kind"] == target for before, _ in pairs),
            len(acted),
            sum(before["kind"] == target for before, _ in acted),
            sum(before["right"] for before, _ in acted),
            sum(after["right"] for _, after in acted),
            " to ".join(str(sum(each["n_tokens"] for each in side)) for side in zip(*acted, strict=True)),
            ", ".join(f"{n} {change}" for change, n in changes.most_common()),
        )
        others = [(before, after) for before, after in pairs if not after["actions"]]
        differ = [before["turn"] for before, after in others if before["tokens"] != after["tokens"]]
        if differ:
            yield f"{setting}: {len(differ)} of {len(others)} other texts DIFFER: {', '.join(differ)}"


def _row(*cells):
    return f"| {' | '.join(map(str, cells))} |"
