"""Messages: edit, answer again, copy, attach files, undo."""

from threading import Event

import pytest
from browsing import ask, ended, last, until
from chat_fake import content, delta


def say(tab, fake, text, answer):
    """Ask and wait for an answer."""
    fake.then(content(answer), delta("stop"))
    n = tab.locator("article").count()
    ask(tab, text)
    ended(tab, n + 1)


def sent(fake, n=-1):
    """Texts of the messages of a request."""
    return [message["content"] for message in fake.bodies[n]["messages"]]


def bubbles(tab):
    return [each.inner_text() for each in tab.locator(".bubble").all()]


def test_an_edited_message_runs_again_and_can_be_undone(tab, fake):
    say(tab, fake, "One", "First")
    say(tab, fake, "Two", "Second")
    tab.locator(".user").first.hover()
    tab.locator("[aria-label='Edit message']").first.click()
    fake.then(content("Other"), delta("stop"))
    tab.keyboard.press("End")
    tab.keyboard.type(" changed")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelectorAll('article').length === 1 && !thread.running")
    assert sent(fake) == ["One changed"]
    assert bubbles(tab) == ["One changed"]
    tab.click("text=Undo")
    until(tab, "document.querySelectorAll('article').length === 2")
    assert bubbles(tab) == ["One", "Two"]
    say(tab, fake, "Three", "Third")
    assert sent(fake) == ["One", "First", "Two", "Second", "Three"]


def test_an_edit_can_be_cancelled(tab, fake):
    say(tab, fake, "One", "First")
    tab.press("#prompt", "ArrowUp")
    tab.keyboard.type("x")
    tab.keyboard.press("Escape")
    assert bubbles(tab) == ["One"]
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == "Edit message"
    assert len(fake.bodies) == 1


def test_an_answer_is_given_again_and_can_be_undone_while_it_is_written(tab, fake):
    say(tab, fake, "One", "First")
    fake.then(content("Anoth"), Event())
    tab.click("[aria-label=Regenerate]")
    tab.wait_for_selector("article:has-text('Anoth')")
    assert sent(fake) == ["One"]
    tab.click("text=Undo")
    tab.wait_for_selector("article:has-text('First')")
    ended(tab)
    say(tab, fake, "Two", "Second")
    assert sent(fake) == ["One", "First", "Two"]


def test_text_can_be_copied(opened, serving, fake, browser):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], viewport={"width": 1280, "height": 800})
    with serving(fake.app) as url, opened(url, context=context) as tab:
        say(tab, fake, "Code?", "Here:\n\n```py\nprint('<b>')\n```")
        for button, text in (
            ("Copy answer", "Here:\n\n```py\nprint('<b>')\n```"),
            ("Copy code", "print('<b>')"),
            ("Copy message", "Code?"),
        ):
            tab.locator(f"[aria-label='{button}']").click()
            until(tab, "document.querySelector('[aria-label=Copied]')")
            assert tab.evaluate("navigator.clipboard.readText()") == text
            until(tab, "!document.querySelector('[aria-label=Copied]')")
    context.close()


def test_text_files_are_sent_in_front_of_the_message(tab, fake):
    files = [
        {"name": "a.py", "mimeType": "text/x-python", "buffer": b"x = 1\n"},
        {"name": "b.md", "mimeType": "", "buffer": b"```\nfenced\n```"},
    ]
    tab.set_input_files("#file", files)
    tab.wait_for_selector("#files .chip:has-text('b.md')")
    assert [chip.inner_text() for chip in tab.locator("#files .chip").all()] == [
        "a.py \u00b7 6 bytes",
        "b.md \u00b7 14 bytes",
    ]
    say(tab, fake, "What is this?", "Code")
    assert sent(fake) == ["File a.py:\n```\nx = 1\n```\n\nFile b.md:\n````\n```\nfenced\n```\n````\n\nWhat is this?"]
    assert not tab.is_visible("#files")
    assert [each.inner_text() for each in tab.locator(".user summary").all()] == [
        "a.py \u00b7 6 bytes",
        "b.md \u00b7 14 bytes",
    ]


def test_files_can_be_dropped_and_removed(tab, fake):
    tab.evaluate("""() => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["dropped"], "d.txt"));
      for (const name of ["dragenter", "dragover", "drop"]) {
        document.body.dispatchEvent(new DragEvent(name, { dataTransfer, bubbles: true }));
      }
    }""")
    tab.wait_for_selector("#files .chip:has-text('d.txt')")
    assert not tab.is_visible("#drop")
    tab.click("[aria-label='Remove d.txt']")
    assert not tab.is_visible("#files")


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"\xff\xfe\x00", "is no text"), (b"a\x00b", "is no text"), (b"x" * (256 * 1024 + 1), "at most 256 KiB")],
    ids=["bytes", "zero", "large"],
)
def test_other_files_are_refused_by_name(tab, data, problem):
    tab.set_input_files("#file", {"name": "f.bin", "mimeType": "", "buffer": data})
    tab.wait_for_selector(f"#status:has-text('{problem}')")
    assert tab.inner_text("#status").startswith("f.bin ")
    assert not tab.is_visible("#files")


def test_a_suggestion_runs_with_its_strategies(tab, fake):
    for _ in range(2):
        fake.then(content("Same"), delta("stop"))
    tab.click(".suggestion >> text=Compare")
    ended(tab, 2)
    assert {body.get("strategy") for body in fake.bodies} == {"dflash", "plain"}
    assert all(body["cache_prompt"] is False for body in fake.bodies)
    assert tab.inner_text("#chosen") == "dflash and plain"


def test_a_small_model_gets_a_limit_and_a_large_one_none(tab, fake):
    say(tab, fake, "One", "a")
    assert "max_tokens" not in fake.bodies[0]
    tab.evaluate("settings.setModel({ meta: { n_params: 5e7 } })")
    say(tab, fake, "Two", "b")
    assert fake.bodies[1]["max_tokens"] == 1024
    assert tab.get_attribute("#max_tokens", "placeholder") == "1024"
    tab.fill("#max_tokens", "7")
    say(tab, fake, "Three", "c")
    assert fake.bodies[2]["max_tokens"] == 7


def test_the_theme_goes_round_and_is_remembered(tab):
    shown = "document.documentElement.dataset.theme"
    assert tab.evaluate(shown) == "auto"
    tab.click("#theme")
    tab.keyboard.press("Alt+t")
    assert tab.evaluate(shown) == "dark"
    tab.reload()
    assert tab.evaluate(shown) == "dark"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 25, 28)"


def test_shortcuts_are_listed(tab):
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("?")
    shown = tab.inner_text("#shortcuts")
    for words in ("Send the message", "Token colours", "Alt+N"):
        assert words in shown
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#shortcuts")
    assert last(tab, "h2").count() == 0
