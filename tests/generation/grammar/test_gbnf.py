"""Grammars of llama.cpp."""

import random
import re

import pytest
from demo_text import demo_tokenizer

from dflash.errors import RequestError
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.gbnf import lark_of
from dflash.generation.grammar.params import GrammarParams

ARITHMETIC = """
# one equation a line
root  ::= (expr "=" term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= num | "(" expr ")"
num   ::= [0-9]{1,4}
"""
LIST = 'root ::= item+\n\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n'
CHESS = """root    ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")*
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""


def matches(text, **params):
    """Return True if a grammar matches the text as a whole."""
    tokenizer = demo_tokenizer()
    (grammar,) = grammars(GrammarParams(**params), [([5], False)], tokenizer)
    matcher = grammar.start()
    return all(matcher.advance(token) for token in tokenizer.encode(text)) and matcher.is_accepting


@pytest.mark.parametrize("field", ["grammar", "lark"])
@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (ARITHMETIC, ["1+2=3\n", "(1-2)*34/5=6\n7=8\n"], ["", "1+2=3", "12345=1\n", "1+=2\n"]),
        (LIST, ["- milk\n- é 🔎\n"], ["milk\n", "- \n", "- a\n\n"]),
        (CHESS, ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O-O exd8=Q+\n"], ["1. e9 e5\n", "e4 e5\n"]),
        ('root ::= "yes" | "no"', ["yes", "no"], ["maybe", "yesno", ""]),
    ],
    ids=["arithmetic", "list", "chess", "choice"],
)
def test_texts_of_a_grammar(field, grammar, good, bad):
    assert all(matches(text, **{field: grammar}) for text in good)
    assert not any(matches(text, **{field: grammar}) for text in bad)


def test_lark_stays_lark():
    assert matches("::=", grammar='start: "::="')
    assert matches("a", grammar='%llguidance {}\n// root ::= "b"\nstart: "a"')


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (r'root ::= "\u0041" [\x42-\U00000044]? "\xe9\t\"\\[]/"', ['Aé\t"\\[]/', 'ADé\t"\\[]/'], ['AEé\t"\\[]/']),
        (r"root ::= [^\]a-c^/]+ [a-]", ["dx-", "(a"], ["ba", "]a", "^a", "/a", "db"]),
        ("root ::= . [^]", ["\n\n", "aé"], ["a", "aaa"]),
        ('root ::= ("a"*)** "b"{2} ("c"{1,2}){ 2, }', ["bbcc", "aabbccccc"], ["bcc", "bbc"]),
        ('root ::= ( "a" |\n# or\n "b"\n) "c" |\n "d"\r\n\nend ::= "x" |', ["ac", "bc", "d"], ["a", "acd"]),
        ('root ::= word "s" "s"\nword ::= [a-z]+', ["cass", "ssss"], ["cats", "ss"]),
        ('root ::= "abc" | "(" root* ")"', ["((abcabc)())"], ["(ab)", "(abc))"]),
        ("root ::= <think> [a-z]+ </think>", ["<think>so</think>"], ["so", "<think></think>"]),
    ],
    ids=["escapes", "sets", "any", "repeated", "lines", "both ways", "a rule in itself", "tokens"],
)
def test_parts_of_a_grammar(grammar, good, bad):
    assert all(matches(text, grammar=grammar) for text in good)
    assert not any(matches(text, grammar=grammar) for text in bad)


def test_tokens_by_number():
    tokenizer = demo_tokenizer()
    think = tokenizer.encode("<think>")[0]
    for grammar, allowed in ((f"root ::= <[{think}]>", [think]), (f"root ::= !<[{think}]>", [7, 300])):
        for token in (think, 7, 300):
            (compiled,) = grammars(GrammarParams(grammar=grammar), [([5], False)], tokenizer)
            assert compiled.start().advance(token) == (token in allowed)


def _random_part(rng, depth):
    """Return a part in GBNF, and the regular expression of the same language."""
    kind = rng.choice(["literal", "set", "any"] + ["sequence", "choice", "repeated", "rule"] * (depth > 0))
    if kind == "literal":
        text = "".join(rng.choices('ab/"\n]', k=rng.randint(1, 3)))
        return '"' + text.replace('"', r"\"").replace("\n", r"\n") + '"', re.escape(text)
    if kind == "set":
        first, negated = rng.choice("ab"), "^" * rng.randint(0, 1)
        return f"[{negated}{first}-b\\]]", f"[{negated}{first}-b\\]]"
    if kind == "any":
        return ".", "(?s:.)"
    if kind in ("sequence", "choice"):
        parts = [_random_part(rng, depth - 1) for _ in range(rng.randint(2, 3))]
        between = " | " if kind == "choice" else " "
        return f"({between.join(part for part, _ in parts)})", f"(?:{between.strip().join(part for _, part in parts)})"
    part, pattern = _random_part(rng, depth - 1)
    if kind == "rule":
        return f"<{part}>", pattern
    times = rng.choice(["*", "+", "?", "{2}", "{1,}", "{0,2}"])
    return part + times, f"(?:{pattern}){times}"


@pytest.mark.parametrize("seed", range(40))
def test_grammars_without_recursion_match_as_regular_expressions(seed):
    rng = random.Random(seed)
    part, pattern = _random_part(rng, 4)
    rules = []
    while found := re.search(r"(?s)<((?:[^<>]|\n)*)>", part):  # the innermost marked part becomes a rule
        part = part[: found.start()] + f"rule-{len(rules)}" + part[found.end() :]
        rules.append(f"rule-{len(rules)} ::= {found[1]}")
    grammar = "\n".join([f"root ::= {part}", *rules])
    for _ in range(30):
        text = "".join(rng.choices('ab/"\n]', k=rng.randint(0, 5)))
        assert matches(text, grammar=grammar) == (re.fullmatch(pattern, text) is not None), (grammar, text)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a', "unexpected end"),
        ("root ::= [a", "unexpected end"),
        ("root ::= []", "expected a character"),
        ("root ::= [b-a]", "expected a character that does not come before"),
        ('root ::= "a"{3,2}', "expected a larger second number"),
        (r'root ::= "\ud800"', "no such character"),
        ("root ::= !<think>", "expected the number of a token"),
        ('root ::= ("a"', "expected \\)"),
        ('root ::= "a" )', "expected a part of a rule"),
        ('root ::= "a"\nb "b"', "expected ::="),
        ("root ::= other", "there is no rule named other"),
        ('other ::= "a"', "there is no rule named root"),
        ('root ::= "\\q"', "unknown escape sequence"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested too deeply"),
        ('root ::= "' + "a" * 2000 + "\\q\n", "unknown escape sequence"),
        ("root ::= " + "x" * 2000, "there is no rule named"),
    ],
)
def test_an_invalid_grammar_is_one_sentence(grammar, reason):
    with pytest.raises(RequestError, match=f"^grammar: the GBNF grammar is .*{reason}") as raised:
        matches("a", grammar=grammar)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_errors_name_the_place_in_the_given_text():
    with pytest.raises(RequestError, match=r"at line 3, between .*b ::= "):
        lark_of('# comment # ".\nroot ::= "a" # [\nb ::= "')
