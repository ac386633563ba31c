"""Conversations that stay in the browser: reload, rename, delete, several tabs, files."""

import json
from threading import Event

import pytest
from browsing import ask, ended, last, until
from chat_fake import content, delta, step


@pytest.fixture
def pair(browser, opened, serving, fake):
    """Two tabs of one browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    with serving(fake.app) as url, opened(url, context=context) as one, opened(url, context=context) as other:
        yield one, other
    context.close()


def say(tab, fake, text, answer="Answer"):
    """Ask and wait for an answer."""
    fake.then(content(answer, **step(1, pieces=[["bonus", answer]], draft=[], path=[])), delta("stop"))
    n = tab.locator("article").count()
    ask(tab, text)
    ended(tab, n + 1)


def titles(tab):
    return [each.inner_text() for each in tab.locator("#conversations .open").all()]


def listed(tab, *expected):
    """Wait until the list holds exactly these titles."""
    shown = "JSON.stringify([...document.querySelectorAll('#conversations .open')].map(each => each.textContent))"
    until(tab, f"{shown} === {json.dumps(json.dumps(list(expected), separators=(',', ':'), ensure_ascii=False))}")


def test_a_reload_keeps_the_conversation(tab, fake):
    say(tab, fake, "First\nmore", "**One**")
    listed(tab, "First")
    tab.reload()
    tab.wait_for_selector("article strong")
    assert tab.inner_text(".bubble") == "First\nmore"
    assert last(tab, "> .text .t.bonus").inner_text() == "One"
    say(tab, fake, "Second")
    assert [each["content"] for each in fake.bodies[1]["messages"]] == ["First\nmore", "**One**", "Second"]


def test_a_reload_in_the_middle_keeps_what_has_arrived(tab, fake):
    fake.then(content("Half", **step(1)), Event())
    ask(tab)
    tab.wait_for_selector("article:has-text('Half')")
    until(tab, "thread.conversation.revision > 1 || thread.save(thread.conversation)")
    tab.reload()
    tab.wait_for_selector("article:has-text('Half')")
    assert "cut off when the page was closed" in last(tab, ".numbers").inner_text()
    fake.then(content("Whole"), delta("stop"))
    tab.click("text=Try again")
    ended(tab)
    assert [each["content"] for each in fake.bodies[1]["messages"]] == ["Hello"]


def test_the_list_opens_renames_and_deletes(tab, fake):
    say(tab, fake, "Apples")
    tab.click("#new")
    assert tab.is_visible("#welcome")
    say(tab, fake, "Pears")
    listed(tab, "Pears", "Apples")
    tab.click("#conversations >> text=Apples")
    tab.wait_for_selector(".bubble:has-text('Apples')")
    tab.click("[aria-label='Rename Apples']")
    tab.keyboard.type("Fruit")
    tab.keyboard.press("Enter")
    listed(tab, "Pears", "Fruit")
    tab.hover("#conversations >> text=Fruit")
    tab.click("[aria-label='Delete Fruit']")
    listed(tab, "Pears")
    assert tab.is_visible("#welcome")
    tab.click("text=Undo")
    listed(tab, "Pears", "Fruit")
    tab.click("#conversations >> text=Fruit")
    tab.wait_for_selector(".bubble:has-text('Apples')")


def test_two_tabs_have_two_conversations(pair, fake):
    one, other = pair
    say(one, fake, "From one")
    say(other, fake, "From the other")
    for tab in pair:
        listed(tab, "From the other", "From one")
    say(one, fake, "More of one")
    for tab in pair:
        listed(tab, "From one", "From the other")
    assert other.inner_text(".bubble") == "From the other"


def test_a_tab_follows_another_one_that_is_quiet(pair, fake):
    one, other = pair
    say(one, fake, "Shared")
    listed(other, "Shared")
    other.click("#conversations >> text=Shared")
    other.wait_for_selector("article")
    say(one, fake, "Next", "Second answer")
    other.wait_for_selector("article:has-text('Second answer')")
    say(other, fake, "Third")
    assert [each["content"] for each in fake.bodies[2]["messages"]][::2] == ["Shared", "Next", "Third"]
    listed(one, "Shared")


def test_tabs_that_write_at_once_lose_nothing(pair, fake):
    one, other = pair
    say(one, fake, "Shared")
    listed(other, "Shared")
    other.click("#conversations >> text=Shared")
    other.wait_for_selector("article")
    rest = Event()
    fake.then(content("Slow", **step(1)), rest, delta("stop"))
    ask(one, "In one")
    one.wait_for_selector("article:has-text('Slow')")
    other.bring_to_front()  # a browser draws what is in front
    fake.then(content("Other"), rest, delta("stop"))
    ask(other, "In the other")
    other.wait_for_selector("article:has-text('Other')")
    rest.set()
    ended(one, 2)
    ended(other, 2)
    one.reload()
    until(one, "document.querySelectorAll('#conversations .open').length === 2")
    texts = set()
    for title in titles(one):
        one.click(f"#conversations >> text='{title}'")
        until(one, f"document.getElementById('title').textContent === {json.dumps(title)}")
        texts.add(tuple(each.inner_text() for each in one.locator(".bubble").all()))
    assert texts == {("Shared", "In one"), ("Shared", "In the other")}


def test_conversations_travel_in_a_file(tab, fake, tmp_path):
    say(tab, fake, "Keep me", "**Kept**")
    with tab.expect_download() as found:
        tab.click("#export")
    file = tmp_path / "saved.json"
    found.value.save_as(file)
    tab.click("[aria-label='Delete Keep me']")
    listed(tab)
    tab.set_input_files("#import-file", file)
    listed(tab, "Keep me")
    tab.click("#conversations >> text=Keep me")
    tab.wait_for_selector("article strong:has-text('Kept')")


@pytest.mark.parametrize("text", ["", "[]", "null", '{"conversations": 3}', '{"conversations": [{"items": [7, null]}]}'])
def test_another_file_is_refused(tab, text):
    tab.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": text.encode()})
    tab.wait_for_selector("#toast:has-text('x.json holds no conversations')")


def test_a_strange_file_breaks_nothing(tab, fake):
    lane = {
        "shown": "<b>x</b>",
        "content": "<img src=x onerror=alert(1)>",
        "finish": 3,
        "calls": [None, {"name": {}}],
        "notes": [1],
        "steps": [
            {"tokens": "4", "drafted": -2, "pieces": [["bonus", 1], ["nothing", "x"]], "draft": [["a", 5]], "path": "no"},
            {"tokens": 1, "pieces": [["accepted", "x"]], "draft": [["x", -1]], "path": [0, 99]},
        ],
        "runs": {"content": [{"at": 0, "length": 4, "step": 9, "piece": 9}]},
        "rate": "fast",
        "usage": {"prompt_tokens": {}},
    }
    items = [{"kind": "user", "text": 1, "files": [{"name": 2}]}, {"kind": "answer", "lanes": [lane]}, {"kind": "else"}]
    data = {"conversations": [{"title": ["x"], "changed": "now", "items": items}]}
    file = {"name": "x.json", "mimeType": "application/json", "buffer": json.dumps(data).encode()}
    tab.set_input_files("#import-file", file)
    until(tab, "document.querySelectorAll('#conversations .open').length === 1")
    tab.click("#conversations .open")
    tab.wait_for_selector("article")
    assert last(tab, "> .text").inner_text() == "<img src=x onerror=alert(1)>"
    assert tab.locator("#log :is(img, b)").count() == 0


def test_a_browser_that_keeps_nothing_says_so(tab, fake):
    tab.evaluate("Object.defineProperty(store, 'opened', { get: () => Promise.reject(new Error('refused')) }) && null")
    say(tab, fake, "Hello")
    tab.wait_for_selector("#toast:has-text('keeps no conversations')")
    assert last(tab, "> .text").inner_text() == "Answer"


def test_the_oldest_conversations_beyond_the_bound_go(tab, fake):
    tab.evaluate("""async () => {
      for (let i = 0; i <= MAX_CONVERSATIONS; i += 1) {
        await store.put({ id: newId(), title: `t${i}`, changed: i, revision: 0, items: [{ kind: "user", text: "x" }] });
      }
    }""")
    heads = tab.evaluate("store.list()")
    assert len(heads) == tab.evaluate("MAX_CONVERSATIONS")
    assert heads[-1]["title"] == "t1"
