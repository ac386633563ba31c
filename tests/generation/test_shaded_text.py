"""Text of a generation with the origin of each token: structure of the HTML."""

import codecs
import re
from html.parser import HTMLParser

import pytest
from generations import DRAFTED, PREFILL, TREE, generation

import dflash
from dflash.decode.drafting.draft import Draft
from dflash.decode.session import Step
from dflash.generation.display.origins import rejected
from dflash.generation.display.palette import COLORS, TAGS
from dflash.generation.display.shaded_text import FIRST, LAST, MAX_PATHS
from dflash.generation.token_texts import TokenText


class Page(HTMLParser):
    """Tokens of the text as (origin, tooltip, text, hidden text); `tags` are the names of all elements."""

    def __init__(self, html):
        super().__init__()
        self.tokens, self.tags, self.open, self.left_out, self.legend = [], [], [], "", ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        assert not any(name.startswith("on") for name in given)
        self.tags.append(tag)
        if "pre" in self.open and "title" in given:
            kind = given["class"].split()[1]
            assert tag == TAGS[kind]
            self.tokens.append([kind, given["title"], "", ""])
        if tag == "s" and given["data-t"] != "\u21b5":
            self.tokens[-1][3] += given["data-t"]
        self.open.append(given.get("class", tag))

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        if "pre" in self.open and "em" in self.open:
            self.left_out += data
        elif "pre" in self.open:
            self.tokens[-1][2] += data
        elif "legend" in self.open:
            self.legend += data

    @property
    def text(self):
        return "".join(token[2] for token in self.tokens)

    @property
    def kinds(self):
        return [token[0] for token in self.tokens]


def page(steps, texts=(), text=None, **extra):
    """The page of steps whose ids have these texts, bytes or `TokenText`; other ids have a text of their own."""
    ids = {token for step in steps for token in (*step.tokens, *step.draft.tokens.tolist())}
    vocabulary = {token: TokenText(f"<{token}>".encode()) for token in ids}
    for token, one in dict(texts).items():
        vocabulary[token] = one if isinstance(one, TokenText) else TokenText(one if isinstance(one, bytes) else one.encode())
    shown = [vocabulary[token] for step in steps for token in step.tokens]
    whole = b"".join(one.data for one in shown if not one.control)
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(whole) if text is None else text
    return Page(generation(steps, text, vocabulary=vocabulary, **extra)._repr_html_())


@pytest.mark.parametrize("strategy", ["plain", "lookup", "mtp:3", "ddtree:22"])
def test_origins_are_those_of_the_steps(lm, strategy):
    found = lm.generate("1, 2, 3, 1, 2, 3, 1, 2,", strategy=strategy, max_tokens=40)
    shown = Page(found._repr_html_())
    accepted = sum(step.accepted for step in found.steps)
    assert shown.text == found.text
    assert shown.kinds.count("accepted") == accepted
    assert shown.kinds.count("bonus") + shown.kinds.count("corrected") == len(found.tokens) - accepted
    n_rejected = sum(step.drafted for step in found.steps) - accepted
    assert (f"{n_rejected:,} rejected draft token" in shown.legend) == bool(n_rejected)
    if accepted:
        assert f"{accepted:,} accepted draft tokens" in shown.legend


def test_injected_tokens_and_control_tokens_are_shown(lm):
    question = [{"role": "user", "content": "Query the database for all TODO."}]
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tool = {"name": "count_lines", "description": "count lines", "parameters": schema}
    asked = {"tools": [{"type": "function", "function": tool}], "chat_template_kwargs": {"enable_thinking": False}}
    found = lm.generate(question, **asked, max_tokens=60, recover="stall", strategy=dflash.MTP())
    shown = Page(found._repr_html_())
    assert sum(step.injected for step in found.steps) == shown.kinds.count("injected") > 0
    assert shown.text == found.text
    assert [token[2:] for token in shown.tokens][-1] == ["", "<|im_end|>"]


def test_rejected_draft_tokens_stand_at_the_token_chosen_instead():
    chain, plain = page(DRAFTED, {5: "five", 6: " six\n"}), page([PREFILL, Step([1])])
    assert chain.kinds == ["accepted", "accepted", "bonus", "corrected"]
    tips = [token[1] for token in chain.tokens]
    assert tips[0] == "accepted draft token, step 1"
    assert tips[1] == "accepted draft token, step 1; rejected here: '<9><8>'"  # a branch beside the accepted one
    assert tips[3] == r"bonus token in place of rejected draft tokens, step 2; rejected here: 'five six\n<7><8>'"
    assert plain.tokens == [["bonus", "bonus token, step 1", "<1>", ""]]
    assert plain.legend == "1 bonus token"


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (Step([1, 2, 3], drafted=4, accepted=2, draft=TREE), [[], [[9, 8]], []]),
        (Step([1, 7], drafted=4, accepted=1, draft=TREE), [[], [[2], [9, 8]]]),
        (Step([7], drafted=4, draft=TREE), [[[1, 2], [1, 9, 8]]]),
        (Step([1], drafted=4, accepted=1, draft=TREE, finish="length"), [[[2], [9, 8]]]),
        (Step([], drafted=4, draft=TREE), []),
        (Step([4, 5], injected=2), [[], []]),
    ],
)
def test_rejected_draft_tokens_of_a_tree(step, found):
    assert rejected(step) == found


def test_many_rejected_branches_are_bounded():
    n = MAX_PATHS + 3
    tip = page([Step([99], drafted=n, draft=Draft(list(range(n)), [-1] * n))], {0: "long " * 99}).tokens[0][1]
    assert tip.count("<") == MAX_PATHS - 1
    assert tip.endswith(", and 3 more")
    assert len(tip) < 250


def test_text_is_escaped():
    texts = {1: '<script>alert("x")</script>', 2: "\r\x00\x1b[31m", 3: "\n\n\t&amp;", 4: "\u202e\x85", 5: "' onclick='x"}
    step = Step([1, 2, 3, 4, 5], drafted=2, draft=Draft([1, 5]))
    shown = page([step], texts)
    assert "script" not in shown.tags
    assert [token[2] for token in shown.tokens] == [
        texts[1],
        "\u240d\u2400\u241b[31m",
        "\n\n\t&amp;",
        r"\u202e\u0085",
        texts[5],
    ]
    assert shown.tokens[0][1].endswith(f"rejected here: {texts[1] + texts[5]!r}")


def test_a_character_split_over_tokens_belongs_to_its_last_token():
    face = "\N{GRINNING FACE}".encode()
    shown = page([Step([1, 2, 3]), Step([4])], {1: b"a" + face[:1], 2: face[1:3], 3: face[3:] + b"b", 4: b"\xc3"})
    assert [token[2] for token in shown.tokens] == ["a", "", "\N{GRINNING FACE}b", ""]
    assert shown.tokens[1][1].endswith("bytes 9f 98 of a character")
    assert shown.tokens[3][1].endswith("bytes c3 of a character")


def test_what_the_text_leaves_out_is_not_part_of_it():
    shown = page([Step([1, 2, 3])], {1: "a", 2: "b<STOP>", 3: TokenText(b"<|im_end|>", True)}, text="ab")
    assert shown.text == "ab"
    assert [token[3] for token in shown.tokens] == ["", "<STOP>", "<|im_end|>"]


def test_a_long_text_is_bounded():
    n = FIRST + LAST + 1234
    steps = [Step([7])] * n
    shown = page(steps, {7: "ab "})
    assert len(shown.tokens) == FIRST + LAST
    assert "1,234 tokens left out; print(generation)" in shown.left_out
    assert f"{n:,} bonus tokens" in shown.legend
    assert len(page([*steps, *steps], {7: "ab "}).tokens) == FIRST + LAST
    assert page(steps[: FIRST + LAST]).left_out == ""


def luminance(color):
    parts = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in color]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", TAGS)
def test_colours_have_contrast_on_light_and_dark_pages(kind):
    """Lines with the page (WCAG 2.2, 1.4.11) and text with the tint under it (1.4.3), as the style sheet has them."""
    html = generation(DRAFTED)._repr_html_()
    tint, line = re.search(rf"\.dflash \.{kind}{{background:#(\w{{8}});border-bottom:\dpx \w+ #(\w{{6}})}}", html).groups()
    assert f"#{line}" == COLORS[kind]
    *color, opacity = (int(tint[i : i + 2], 16) / 255 for i in (0, 2, 4, 6))
    for ground, ink in ((1.0, 0.13), (0x11 / 255, 1.0)):
        behind = [opacity * part + (1 - opacity) * ground for part in color]
        assert contrast(color, [ground] * 3) >= 3
        assert contrast(behind, [ink] * 3) >= 4.5


def test_origins_differ_by_more_than_colour():
    lines = re.findall(r"border-bottom:(\dpx \w+) ", generation(DRAFTED)._repr_html_())
    assert len(set(lines)) == len(lines) == len(TAGS) == len(set(TAGS.values()))
