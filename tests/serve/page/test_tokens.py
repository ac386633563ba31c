"""Tokens coloured by their origin, and the slider through the steps."""

import pytest
from browsing import ask, ended, last
from chat_fake import content, delta, reasoning, step

DRAFT = [[" b", -1], [" c", 0], [" d", 1]]


def answer(fake):
    """Script of three steps: reasoning, a rejected draft, and an accepted one."""
    fake.then(
        reasoning("Hm"),
        delta(**step(2, pieces=[["bonus", "Hm"], ["bonus", "</think>", "added"]], draft=[], path=[])),
        content(
            "**a** b x",
            **step(
                4,
                3,
                1,
                path=[0],
                draft=DRAFT,
                pieces=[["injected", "\n\n**a"], ["injected", "**"], ["accepted", " b"], ["corrected", " x"]],
            ),
        ),
        content(
            "\n- one\n- two",
            **step(
                3,
                2,
                2,
                path=[0, 1],
                draft=[["\n-", -1], [" one\n- ", 0]],
                pieces=[["accepted", "\n-"], ["accepted", " one\n- "], ["bonus", "two"]],
            ),
        ),
        delta(**step(1, pieces=[["bonus", "<|im_end|>", "control"]], draft=[], path=[])),
        delta("stop"),
    )


def origins(tab, part):
    """Text and origin of the tokens in a part of the last answer."""
    tokens = last(tab, f"{part} .t").all()
    return [(token.text_content(), token.get_attribute("class").split()[1]) for token in tokens]


@pytest.fixture
def answered(tab, fake):
    answer(fake)
    ask(tab)
    ended(tab)
    return tab


def test_every_character_has_the_origin_of_its_token(answered):
    assert origins(answered, "details") == [("Hm", "bonus")]
    assert origins(answered, "> .text") == [
        *[("a", "injected"), (" b", "accepted"), (" x", "corrected")],
        *[("one", "accepted"), ("two", "bonus")],
    ]
    assert last(answered, "> .text strong").inner_text() == "a"


def test_a_line_that_one_token_ends_and_begins_keeps_its_token(answered):
    assert [item.inner_text() for item in last(answered, "li").all()] == ["one", "two"]


def test_the_note_of_a_token_shows_what_was_rejected(answered):
    last(answered, ".t.corrected").hover()
    assert answered.is_visible("#tip")
    shown = answered.inner_text("#tip")
    assert "bonus token in place of rejected draft tokens, step 2" in shown
    assert answered.inner_text("#tip s") == "\u2423c d"
    answered.keyboard.press("Escape")
    assert not answered.is_visible("#tip")


def test_the_keyboard_moves_from_token_to_token(answered):
    """Tab reaches one token of the text; its note follows the focus, and Enter chooses its step."""
    token, focused = last(answered, "> .text .t").first, "document.activeElement.textContent"
    assert last(answered, "> .text .t[tabindex='0']").count() == 1
    token.focus()
    assert answered.inner_text("#tip") == "token injected by a recovery, step 2"
    answered.keyboard.press("ArrowRight")
    answered.keyboard.press("ArrowRight")
    assert answered.evaluate(focused) == " x"
    assert answered.inner_text("#tip s") == "\u2423c d"
    assert answered.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    answered.keyboard.press("Enter")
    assert last(answered, ".scrub input").input_value() == "2"
    answered.keyboard.press("End")
    assert answered.evaluate(focused) == "two"
    answered.keyboard.press("ArrowRight")
    assert answered.evaluate(focused) == "two"
    answered.keyboard.press("Tab")
    assert not answered.is_visible("#tip")
    answered.keyboard.press("Shift+Tab")
    assert answered.evaluate(focused) == "two", "Tab comes back to the token that was left"
    answered.keyboard.press("Alt+c")
    assert last(answered, ".t[tabindex='0']").count() == 0
    answered.keyboard.press("Alt+c")
    assert last(answered, "> .text .t[tabindex='0']").inner_text() == "two"


def test_an_answer_without_drafts_is_not_marked(answered, fake):
    border = "node => getComputedStyle(node).borderBottomStyle + getComputedStyle(node).borderBottomColor"
    assert "dotted" in last(answered, "> .text .t.bonus").evaluate(border)
    fake.then(content("a b", **step(2, pieces=[["bonus", "a"], ["bonus", " b"]], draft=[], path=[])), delta("stop"))
    ask(answered)
    ended(answered, 2)
    assert last(answered, "> .text .t.bonus").count() == 2
    assert last(answered, "> .text .t.bonus").first.evaluate(border) == "solidrgba(0, 0, 0, 0)"


def test_a_tap_chooses_the_step_of_a_token(answered):
    last(answered, ".t.corrected").click()
    assert last(answered, ".scrub input").input_value() == "2"
    assert last(answered, ".step-panel").is_visible()


def test_the_keyboard_moves_through_the_steps(answered):
    slider = last(answered, ".scrub input")
    slider.focus()
    assert slider.get_attribute("aria-valuetext") == "the whole answer"
    answered.keyboard.press("Home")
    answered.keyboard.press("ArrowRight")
    words = "Step 2 of 4: 3 drafted, 1 accepted, 2 rejected, 4 tokens written, 10.0 ms"
    assert slider.get_attribute("aria-valuetext") == last(answered, ".step-words").inner_text() == words
    chips = [chip.get_attribute("class") for chip in last(answered, ".token-row:first-child .chip").all()]
    assert chips == ["chip accepted", "chip rejected", "chip rejected"]
    assert last(answered, ".token-row:last-child").inner_text().split("\n")[0] == "written"
    assert [token.inner_text() for token in last(answered, "> .text .later").all()] == ["one", "two"]
    assert {token.inner_text().strip() for token in last(answered, ".now").all()} == {"a", "b", "x"}
    last(answered, "text=Whole answer").click()
    assert last(answered, ".later").count() == 0


def test_the_steps_of_a_tree_are_rows(tab, fake):
    draft = [["a", -1], ["b", -1], ["c", 0], ["d", 0], ["e", 1]]
    fake.then(
        content(
            "ad!", **step(3, 5, 2, path=[0, 3], draft=draft, pieces=[["accepted", "a"], ["accepted", "d"], ["bonus", "!"]])
        ),
        content(".", **step(1, pieces=[["bonus", "."]])),
        delta("stop"),
    )
    ask(tab)
    ended(tab)
    last(tab, ".strip > span").first.click()
    rows = last(tab, ".token-row").all()
    kinds = [[chip.get_attribute("class").split()[1] for chip in row.locator(".chip").all()] for row in rows]
    assert kinds == [
        ["accepted", "accepted"],
        ["again", "rejected"],
        ["rejected", "rejected"],
        ["accepted", "accepted", "bonus"],
    ]


def test_the_steps_play_to_the_end(answered):
    last(answered, "[aria-label='Play the steps']").click()
    last(answered, "[aria-label=Pause]").wait_for()
    last(answered, "[aria-label='Play the steps']").wait_for()
    assert not last(answered, ".step-panel").is_visible()


def test_colours_can_be_turned_off_for_good(answered):
    token = last(answered, "> .text .t.accepted").first
    shown = "node => getComputedStyle(node).backgroundColor"
    assert token.evaluate(shown) != "rgba(0, 0, 0, 0)"
    answered.keyboard.press("Alt+c")
    assert token.evaluate(shown) == "rgba(0, 0, 0, 0)"
    answered.reload()
    answered.wait_for_selector("article")
    assert not answered.is_checked("#origins")


def test_steps_without_tokens_have_a_chart_and_no_slider(tab, fake):
    fake.then(content("a", **step(1)), content("b", **step(2, 3, 1)), delta("stop"))
    ask(tab)
    ended(tab)
    assert last(tab, ".strip > span").count() == 2
    assert not last(tab, ".scrub").is_visible()


def test_text_that_a_tag_holds_too_has_the_origin_of_its_own_token(tab, fake):
    pieces = [["bonus", "Hm"], ["bonus", "</think>", "added"], ["accepted", "\n\nthink"], ["corrected", "!"]]
    fake.then(reasoning("Hm"), content("think"), content("!", **step(4, 2, 1, pieces=pieces)), delta("stop"))
    ask(tab)
    ended(tab)
    assert origins(tab, "> .text") == [("think", "accepted"), ("!", "corrected")]
