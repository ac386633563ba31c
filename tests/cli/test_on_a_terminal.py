"""The real program on terminals of several widths."""

import re

from terminals import on_terminal, styles, without_codes

QUESTION = "Write a function that returns the greatest common divisor of a and b."


def test_run_on_a_narrow_terminal():
    """Reasoning is dim and without tags, tokens have colours, rejected ones are struck through, and a legend follows."""
    words = "run", "demo", QUESTION, "--threads", "2", "--strategy", "dflash", "--show-tokens"
    code, shown = on_terminal(*words, columns=44)
    assert code == 0
    assert not re.search(r"</?think>|<\|im_end", shown)
    found = [(style, text) for style, text in styles(shown) if text.strip()]
    assert ("2", "(reasoning)\n") in found
    assert any(style == "2;36" for style, _ in found)
    assert any(style == "36" for style, _ in found)
    assert any(style.startswith(("9;31", "2;9;31")) for style, _ in found)
    lines = [line for line in without_codes(shown).splitlines() if re.search(r"\d (accepted|bonus|rejected)", line)]
    assert lines
    assert max(map(len, lines)) <= 44


def test_chat_on_a_narrow_terminal():
    lines = "What is the capital of Japan?", "/compare plain lookup", "/help", "/hlep", "/exit"
    code, shown = on_terminal("chat", "demo", "--threads", "2", "--no-think", columns=44, typed=lines)
    assert code == 0
    text = without_codes(shown)
    assert "The capital of Japan is Tokyo." in text
    assert "unknown command (did you mean /help?)" in " ".join(text.split())
    own = [line for line in text.splitlines() if not line.startswith("> ") and "|" not in line and "it/s" not in line]
    assert max(map(len, own)) <= 44, max(own, key=len)
    assert all(len(line) <= 44 for line in text.splitlines() if line.startswith("|"))
