"""Grammars of llama.cpp."""

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
    ("grammar", "reason"),
    [
        ('root ::= "a', "Unexpected end of input"),
        ("root ::= [a", "Unexpected end of input"),
        ("root ::= other", "Rule 'other' not found"),
        ('other ::= "a"', "No 'root' rule found"),
        ('root ::= "\\q"', "Invalid escape sequence"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested too deeply"),
        ('root ::= "' + "a" * 2000 + "\\q\n", "Invalid escape sequence"),
    ],
)
def test_an_invalid_grammar_is_one_sentence(grammar, reason):
    with pytest.raises(RequestError, match=f"^grammar: the GBNF grammar is .*{reason}") as raised:
        matches("a", grammar=grammar)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "grammar", [ARITHMETIC, LIST, CHESS, 'root ::= a | root\na ::= b b\nb ::= c\nc ::= [#"] d\nd ::= a?']
)
def test_the_conversion_is_that_of_the_library(grammar):
    """Only comments and empty lines differ: terminals are found in linear time here."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    expected = [line for line in gbnf_to_lark(grammar).splitlines() if line and not line.startswith("//")]
    assert lark_of(grammar).splitlines() == [*expected, '%llguidance {"no_forcing": true}']


def test_errors_name_the_place_in_the_given_text():
    with pytest.raises(RequestError, match="at line 3, "):
        lark_of('# comment # ".\nroot ::= "a" # [\nb ::= "')
