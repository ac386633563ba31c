"""Tables of recorded agent turns."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import turn_report
from turn_tasks import AgentTurn

TURNS = [
    AgentTurn(name, [], [{"type": "function", "function": {"name": "ls"}}], wants)
    for name, wants in (("pi/a/0", "call"), ("pi/a/1", "answer"), ("pi/a/2", "answer"))
]


def record(turn, setting, text, *, calls=(), acts=False):
    return {
        "turn": turn,
        "setting": setting,
        "temperature": 0.0,
        "text": text,
        "content": "" if calls else text,
        "calls": list(calls),
        "finish": "stop",
        "tokens": [ord(character) for character in text],
        "n_tokens": len(text),
        "actions": [{"reason": "it did"}] if acts else [],
    }


def test_what_recoveries_changed(capsys):
    call = {"name": "ls", "arguments": "{}"}
    records = [
        record("pi/a/0", "free", "I look:"),
        record("pi/a/1", "free", "It holds 500 in:"),
        record("pi/a/2", "free", "Done."),
        record("pi/a/0", "stall", "I look: ls", calls=[call], acts=True),
        record("pi/a/1", "stall", "It holds 500 in:", acts=True),
        record("pi/a/2", "stall", "Done!"),
        {"turn": "pi/a/0", "setting": "strict", "temperature": 0.0, "error": "no grammar"},
        record("gone/a/0", "free", ""),
    ]
    turn_report.tables(records, TURNS)
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[2][:5] == ["call", "free", "0.0", "1", "0"]
    assert cells[3][:5] == ["answer", "free", "0.0", "2", "1"]
    (row,) = [row for row in cells if row[0] == "`stall`"]
    assert row[1:9] == ["0.0", "3", "2", "1", "1", "0", "1", "7 to 10"], "an action that leaves the text as it was is none"
    assert row[9] == "1 announces to valid"
    assert lines[-2:] == ["stall: 1 of 1 other texts DIFFER: pi/a/2", "1 refused: no grammar"]
