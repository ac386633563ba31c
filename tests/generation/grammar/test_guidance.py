"""Positions in compiled grammars: pure functions of their tokens; ends, forced tokens, headers of parameters."""

import json
import random
import sys
from types import SimpleNamespace

import pytest
from demo_text import DATA, demo_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from word_grammar import tokens_of

from dflash.decode.drafting.draft import Draft
from dflash.decode.grammar.state import GrammarState
from dflash.errors import DFlashError, RequestError
from dflash.generation.grammar import compilation, guidance
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.guidance import GuidanceGrammar, GuidanceVocabulary
from dflash.generation.grammar.mask_budget import SharedMaskBudget
from dflash.generation.grammar.params import GrammarParams
from dflash.model.text.chat_template import ChatTemplate

XML = ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={})
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}, "mode": {"enum": ["a", "b c"]}},
    "required": ["path"],
}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "kinds": {"type": "array", "items": {"enum": ["x", "ß"]}}},
    "required": ["name", "kinds"],
}
CASES = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "regex": {"regex": r"(ab|a)*c[0-9]{2,5}(x|the end)"},
    "lark": {"lark": 'start: item ("," item)*\nitem: "<" /[a-z]+/ ">"'},
    "calls": {"tool_choice": "required"},
}


def compiled(tools=TOOLS, **fields):
    (grammar,) = grammars(GrammarParams(**fields), [([5], False)], demo_tokenizer(), XML, tools)
    return grammar


def ids(text):
    return demo_tokenizer().encode(text)


def texts(words):
    return {demo_tokenizer().token_bytes(token) for token in tokens_of(words)}


def after(grammar, text):
    matcher = grammar.start()
    for token in ids(text):
        assert matcher.advance(token), demo_tokenizer().token_bytes(token)
    return matcher


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), moves=st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_random_advance_and_rollback_equal_a_fresh_replay(name, seed, moves):
    grammar, rng = compiled(**({"tools": ()} if name != "calls" else {}), **CASES[name]), random.Random(seed)
    matcher, path = grammar.start(), []
    for move in moves:
        legal = tokens_of(matcher.mask())
        if move < 3 or not legal:
            n = rng.randint(0, min(len(path), 6))
            matcher.rollback(n)
            path = path[: len(path) - n]
        else:
            token = matcher.forced()[0] if move < 5 and matcher.forced() else rng.choice(sorted(legal))
            assert matcher.advance(token)
            path.append(token)
    fresh = grammar.start()
    assert all(map(fresh.advance, path))
    assert tokens_of(matcher.mask()) == tokens_of(fresh.mask())
    assert list(matcher.forced()) == list(fresh.forced())
    assert (matcher.is_accepting, matcher.is_complete) == (fresh.is_accepting, fresh.is_complete)
    ends = set(demo_tokenizer().eos_ids)
    legal = tokens_of(matcher.mask())
    assert matcher.is_accepting == bool(legal & ends)
    assert matcher.is_complete == (bool(legal) and legal <= ends)
    assert set(matcher.forced()[:1]) <= legal


def test_end_tokens_are_legal_once_where_the_grammar_may_end():
    matcher = after(compiled(tools=(), regex="ab?"), "a")
    ends = {demo_tokenizer().token_bytes(token) for token in demo_tokenizer().eos_ids}
    assert texts(matcher.mask()) == ends | {b"b"}
    for end in demo_tokenizer().eos_ids:
        assert matcher.advance(end)
        assert not matcher.advance(end)
        assert tokens_of(matcher.mask()) == set()
        matcher.rollback(1)
    assert matcher.advance(*ids("b"))
    assert matcher.is_complete
    assert texts(matcher.mask()) == ends
    assert not matcher.advance(*ids("b"))
    matcher.rollback(2)
    assert texts(matcher.mask()) == {b"a", b"ab"}
    assert not matcher.advance(demo_tokenizer().eos_ids[0])


def test_forced_text_is_forced():
    assert (
        demo_tokenizer().decode(after(compiled(tool_choice="required"), "<tool_call>").forced())
        == "\n<function=read>\n<parameter=path"
    )


@pytest.mark.parametrize("value", ["x<think>y", "<|im_end|>", "<tool_call>", "e\u0301 \u2126", "\ue000", "😀\n"])
def test_certain_text_with_the_name_of_an_added_token_or_unusual_characters(value):
    """The text is spelled out, in the very characters of the schema."""
    schema = {"type": "object", "properties": {"a": {"const": value}}, "required": ["a"], "additionalProperties": False}
    matcher, path = compiled((), response_format={"type": "json_schema", "json_schema": {"schema": schema}}).start(), []
    while not matcher.is_complete:
        legal = tokens_of(matcher.mask())
        assert not any(demo_tokenizer().is_added(token) for token in legal)
        path.append(min(legal, key=lambda token: (len(demo_tokenizer().token_bytes(token).strip(b" \n")) == 0, token)))
        assert matcher.advance(path[-1])
        assert len(path) < 60
    assert json.loads(demo_tokenizer().decode(path)) == {"a": value}


def test_after_a_key_only_its_header_and_line_breaks_may_follow():
    """On the demo's vocabulary ``>\\n\\n`` and ``>The`` are tokens. The value may begin with a line break."""
    tokenizer = demo_tokenizer()
    joining = {text for token in range(tokenizer.n_tokens) if (text := tokenizer.token_bytes(token))[:1] == b">"}
    assert {b">\n\n", b">\n"} < joining
    matcher = after(compiled(tool_choice="required"), "<tool_call>\n<function=read>\n<parameter=path")
    legal = {text for text in joining if not text.strip(b">\n") and text.count(b">") == 1}
    assert texts(matcher.mask()) == legal
    for text in joining:
        assert matcher.advance(tokenizer.id_of(text.decode())) == (text in legal), text
        matcher.rollback(text in legal)


def test_a_value_may_begin_with_a_line_break_or_be_empty():
    matcher = after(compiled(tool_choice="required"), "<tool_call>\n<function=read>\n<parameter=path>\n")
    assert {b"\n", b"\n\n", b"a", b" ", b"<", b">"} <= texts(matcher.mask())
    for token in ids("\n</parameter"):
        assert matcher.advance(token)
    assert b">\n" in texts(matcher.mask())
    matcher = after(compiled(tool_choice="required"), "<tool_call>\n<function=read>\n<parameter=path>\n")
    for token in ids("\n \n<a>\n\n</b>\n</parameter>\n"):
        assert matcher.advance(token)
    assert texts(matcher.mask()) >= {b"<", b"</", b"<parameter", b"a"}, "only a tag after the line ends the value"


def test_free_text_holds_tags_but_no_control_tokens():
    """The token that closes a call may stand in a line only: at its start, a model has forgotten the other tags."""
    tokenizer = demo_tokenizer()
    matcher = after(compiled(tool_choice="required"), "<tool_call>\n<function=read>\n<parameter=path>\nx")
    shown = {tokenizer.id_of(tag) for tag in ("<think>", "</think>", "<tool_call>", "<tool_response>", "</tool_response>")}
    end = tokenizer.id_of("</tool_call>")
    assert {token for token in tokens_of(matcher.mask()) if tokenizer.is_added(token)} == {*shown, end}
    assert matcher.advance(tokenizer.id_of("\n"))
    assert {token for token in tokens_of(matcher.mask()) if tokenizer.is_added(token)} == shown


def strict(schema):
    return {"type": "json_schema", "json_schema": {"schema": schema, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "(("}, "regex: .*unclosed group"),
        ({"regex": r"(?=a)b"}, "regex: .*look-around"),
        ({"lark": "start: nothing"}, "lark: .*unknown name"),
        ({"grammar": "%%%"}, "grammar: "),
        ({"lark": "start: a\na: b\nb: a"}, "lark: no output matches rule"),
        ({"lark": "start: <no_such_token>"}, "lark: .*unknown special token"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
            "response_format: .*objekt",
        ),
        (
            {"response_format": strict({"type": "array", "uniqueItems": True})},
            "response_format: #/uniqueItems can't be enforced",
        ),
        (
            {"response_format": strict({"$ref": "#/$defs/none"})},
            "response_format: .*does not exist",
        ),
    ],
)
def test_what_cannot_be_compiled_is_one_sentence(fields, message):
    with pytest.raises(RequestError, match=f"(?i)^{message}") as caught:
        compiled((), **fields)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_too_much_work_to_compile_is_refused(monkeypatch):
    words = "|".join(f"word{i}" for i in range(900))
    compiled((), regex=words)
    monkeypatch.setattr(compilation, "COMPILE_FUEL", 1000)
    with pytest.raises(RequestError, match=r"^regex: .*too big"):
        compiled((), regex=words)
    rules = " ".join(f'"a{i}" x?' for i in range(900)) + "\nx: /y/"
    monkeypatch.undo()
    compiled((), lark=f"start: {rules}")
    monkeypatch.setattr(compilation, "MAX_SYMBOLS", 1000)
    with pytest.raises(RequestError, match=r"^lark: .*too big"):
        compiled((), lark=f"start: {rules}")


def test_too_much_work_for_a_mask_ends_the_output_with_an_error(monkeypatch):
    monkeypatch.setattr(compilation, "STEP_FUEL", 50)
    monkeypatch.setattr(compilation, "MAX_STATES", 20)
    with pytest.raises(DFlashError, match=r"^(grammar: can't be followed further|regex)"):
        matcher = compiled((), regex="[a-z ]*q([a-z ]{0,30}z){1,40}[0-9]+").start()
        for token in ids("the quick brown fox jumps over the lazy dog a zebra"):
            matcher.mask()
            matcher.advance(token)


@pytest.fixture
def work(monkeypatch):
    """CPU seconds of each piece of work of a matcher, which the test sets. Requests of other tests have taken nothing."""
    clock = SimpleNamespace(now=0.0, each=0.0)
    monkeypatch.setattr(GuidanceVocabulary.of(demo_tokenizer()), "mask_budget", SharedMaskBudget())

    def thread_time():
        clock.now += clock.each / 2
        return clock.now

    monkeypatch.setattr(guidance, "thread_time", thread_time)
    return clock


def test_masks_that_take_too_long_end_their_request_alone(work):
    """Its outputs share the budget; cheap masks never use it up."""
    slow, other = (compiled((), regex="[a-z ]*") for _ in range(2))
    outputs, neighbour = [slow.start(), slow.start()], other.start()
    for _ in range(1000):
        neighbour.mask()
    work.each, n = 0.04, 0
    with pytest.raises(RequestError, match=r"^grammar: masks take too long, [0-9]+ ms of CPU time each lately, 5 ms"):
        while n < 1000:
            outputs[n % 2].mask()
            n += 1
    assert 0.06 < n * (0.02 - 0.005) + 0.02 < 0.1, "one more than the budget allows"
    work.each = 0.0
    for output in outputs:
        with pytest.raises(RequestError, match="masks take too long"):
            output.mask()
    neighbour.mask()


def test_moves_count_too(work):
    matcher, n = compiled((), regex="[a-z ]*").start(), 0
    matcher.mask()
    (token,) = ids("a")
    work.each = 0.02
    with pytest.raises(RequestError, match="masks take too long"):
        while n < 1000:
            matcher.advance(token)
            n += 1
    assert n == 6


def test_a_draft_has_as_many_tokens_as_masks_are_affordable(work):
    state = GrammarState(compiled((), regex="[a-z ]*"))
    draft = Draft(ids("the quick brown fox jumps over the lazy dog"))
    assert len(state.fit(draft, 64)) == 10 < len(draft), "before the first mask"
    for each, n in ((0.0, len(draft)), (0.01, 5)):
        work.each = each
        for _ in range(40):
            state.mask()
        work.each = 0.0
        assert len(state.fit(draft, 64)) == n, "25 ms of masks, 5 ms each"
    forced = GrammarState(compiled((), regex="the quick brown fox jumps over the lazy dog and is gone"))
    assert len(forced.fit(Draft([]), 64)) == 10


def test_work_that_the_library_limits_ends_the_request_with_its_reason():
    """Many ways to read the same text: the items of one mask are bounded, whatever the clock shows."""
    matcher = compiled((), lark='start: start start start | /[a-z]/ | ""').start()
    (token,) = ids("a")
    with pytest.raises(RequestError, match=r"^grammar: (can't be followed further: .*Too many items|masks take too long)"):
        for _ in range(200):
            matcher.mask()
            matcher.advance(token)


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": 'root ::= [^x]? r{2,4}\nr ::= "a"{2,4} "a"*'},
        {"lark": 'start: A A\nA: "a"+'},
        {"lark": '%llguidance {"no_forcing": false}\nstart: A A // a comment\nA: "a"+ //'},
        {"lark": json.dumps({"grammars": [{"lark_grammar": 'start: A A\nA: "a"+'}]})},
        {"lark": 'start: A x\nA: /a+/\nx: "a" | A'},
    ],
)
def test_the_only_text_that_can_follow_may_have_no_end(fields):
    """A terminal takes all text that the next one needs. The library would never return from a mask."""
    matcher = compiled((), **fields).start()
    (token,) = ids("a")
    for _ in range(50):
        assert token in tokens_of(matcher.mask())
        assert matcher.advance(token)
        assert len(matcher.forced()) < 100


def test_where_no_text_leads_on_the_request_is_at_fault():
    matcher = compiled((), lark='start: "a" T\nT: /b/ & /c/').start()
    matcher.advance(*ids("a"))
    with pytest.raises(RequestError, match=r"^grammar: can't be followed further: no output matches"):
        matcher.mask()


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    words = r"^an output with response_format, .* needs llguidance: pip install 'dflash-gguf\[grammar\]'$"
    with pytest.raises(RequestError, match=words):
        GuidanceGrammar(GuidanceVocabulary.of(demo_tokenizer()), "start: /a/", "lark")


def test_an_old_library_is_one_sentence(monkeypatch):
    monkeypatch.setattr(compilation, "version", lambda name: "1.6.1")
    vocabulary = GuidanceVocabulary(demo_tokenizer())
    assert vocabulary.isolate() is None
    words = r"llguidance \(version 1.6.1 is older than 1.9\): pip install 'dflash-gguf\[grammar\]'$"
    with pytest.raises(RequestError, match=words):
        GuidanceGrammar(vocabulary, "start: /a/", "lark")


def test_padding_and_added_tokens_are_never_legal():
    """A grammar of any text at all allows every token that is text, and no other."""
    tokenizer = demo_tokenizer()
    legal = tokens_of(compiled((), regex="(?s:.*)").start().mask()) - set(tokenizer.eos_ids)
    assert not any(tokenizer.is_added(token) for token in legal)
    assert all(token < tokenizer.n_tokens and tokenizer.token_bytes(token) for token in legal)
    ordinary = {token for token in range(tokenizer.n_tokens) if not tokenizer.is_added(token)}
    assert {token for token in ordinary if "\ufffd" not in tokenizer.decode([token])} <= legal
