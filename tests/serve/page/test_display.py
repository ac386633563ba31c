"""How the page looks and is operated: phone, contrast, keyboard alone, and text of a model that tries to be HTML."""

from threading import Event

import pytest
from browsing import ask, ended, last, until
from chat_fake import call, content, delta, reasoning, step, usage

PHONE = {"width": 390, "height": 844}

HOSTILE = """<script>alert(1)</script> <img src=x onerror=alert(2)>
**<b onmouseover=alert(3)>bold</b>** `<svg onload=alert(4)>` [link](javascript:alert(5))

- <iframe src="https://example.com"></iframe>
1. </style><style>*{display:none}</style>

```html
</code></pre><script>alert(6)</script>
```
"""

CODE = "def f(x):  # comment\n    return 'text' + 10\n" * 2
LONG = f"# Heading\n\n{'word ' * 60}{'x' * 300}\n\n```python\n{CODE}{'y = 1; ' * 60}\n```\n\n- {'z' * 200}\n  1. nested\n"

CONTRAST = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const parts = rgb.slice(0, 3).map((v) => v / 255);
    const [r, g, b] = parts.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const [r, g, b, alpha = 1] = parse(getComputedStyle(each).backgroundColor);
      layers.push([r, g, b, alpha]);
      if (alpha === 1) break;
    }
    const over = (under, [r, g, b, alpha]) => [r, g, b].map((v, i) => alpha * v + (1 - alpha) * (under[i] ?? 0));
    return layers.reduceRight(over, []);
  };
  const texts = [...document.querySelectorAll("body *:not(script)")].filter((each) =>
    each.getClientRects().length && (["INPUT", "SELECT", "TEXTAREA"].includes(each.tagName)
      || [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim())));
  return texts.map((each) => {
    const [low, high] = [light(parse(getComputedStyle(each).color)), light(behind(each))].sort((a, b) => a - b);
    return [each.tagName + "." + each.className, (high + 0.05) / (low + 0.05)];
  });
}"""
"""Contrast of every shown text with its background (WCAG 2.2, 1.4.3)."""


def full(fake):
    """Script of a completion with everything that the page can show."""
    lines = LONG.splitlines(keepends=True)
    origins = ["accepted", "bonus", "corrected", "injected"]
    pieces = [["bonus", "Thinking " * 30], *([origins[i % 4], line] for i, line in enumerate(lines))]
    fake.then(
        reasoning("Thinking " * 30),
        content(LONG, **step(5, 30, 4, pieces=pieces, draft=[["x", -1]], path=[])),
        call(0, name="get_weather", arguments='{"a": ' + "1" * 200),
        delta("stop", interventions=["loop: a note"]),
        usage(20, 6),
    )


def test_hostile_text_is_shown_as_text(tab, fake):
    fake.then(reasoning(HOSTILE), content(HOSTILE), call(0, name="<i>x</i>", arguments="<img src=x>"), delta("tool_calls"))
    ask(tab, HOSTILE)
    ended(tab)
    tab.click("summary")
    shown = last(tab, "> .text").inner_text()
    for part in (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "<b onmouseover=alert(3)>bold</b>",
        "</style>",
    ):
        assert part in shown
    assert last(tab, "> .text strong").inner_text() == "<b onmouseover=alert(3)>bold</b>"
    assert last(tab, "> .text pre").inner_text().strip() == "</code></pre><script>alert(6)</script>"
    assert last(tab, ".call h3").inner_text() == "<i>x</i>"
    assert tab.inner_text(".user").startswith("<script>")
    assert tab.locator(":is(script, img, iframe, svg:not(.icon), b, a[href^=javascript], style):is(#log *)").count() == 0


def test_the_policy_refuses_html_from_text(opened, serving, fake):
    with serving(fake.app) as url, opened(url, expected=["TrustedHTML"]) as tab:
        refused = tab.evaluate("() => { try { document.body.innerHTML = '<p>'; } catch (error) { return error.name; } }")
        assert refused == "TypeError"


def test_markdown_becomes_elements(tab, fake):
    fake.then(
        content("# Title\n\nOne *soft* **hard** `code`\n\n2. two\n3. three\n   - inner\n\n~~~py\na\n\nb"), delta("stop")
    )
    ask(tab)
    ended(tab)
    text = last(tab, "> .text")
    assert text.locator("h3").inner_text() == "Title"
    assert [text.locator(f"p > {tag}").inner_text() for tag in ("em", "strong", "code")] == ["soft", "hard", "code"]
    assert text.locator("ol").get_attribute("start") == "2"
    assert text.locator("ol > li").count() == 2
    assert text.locator("ol > li > ul > li").inner_text() == "inner"
    assert text.locator("pre").get_attribute("data-language") == "py"
    assert text.locator("pre").inner_text().strip() == "a\n\nb"


@pytest.mark.parametrize("viewport", [PHONE, {"width": 320, "height": 640}], ids=lambda size: str(size["width"]))
def test_a_phone_needs_no_sideways_scrolling(opened, serving, fake, viewport):
    with serving(fake.app) as url, opened(url, viewport=viewport) as tab:
        assert not tab.is_visible("#settings")
        tab.click("#toggle")
        tab.click("text=As the server has them")
        assert tab.is_visible("#settings")
        widths = [tab.evaluate("document.documentElement.scrollWidth"), tab.evaluate("settings.form.scrollWidth")]
        tab.check("#compare")
        tab.click("#close-settings")
        full(fake)
        full(fake)
        ask(tab, "w" * 300)
        ended(tab, 2)
        widths += [tab.evaluate("document.documentElement.scrollWidth"), tab.evaluate("thread.log.scrollWidth")]
        assert max(widths) <= viewport["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened, serving, fake, scheme):
    with serving(fake.app) as url, opened(url, scheme=scheme) as tab:
        tab.click("text=As the server has them")
        full(fake)
        fake.then(content("a"), {"error": {"message": "the engine failed"}})
        ask(tab)
        ended(tab)
        tab.click("summary")
        ask(tab)
        ended(tab, 2)
        found = tab.evaluate(CONTRAST)
        origins = {f"SPAN.t {kind}" for kind in ("accepted", "bonus", "corrected", "injected")}
        assert origins <= {name for name, _ in found}
        assert {"P.error", "SUMMARY.", "CODE.", "TEXTAREA.", "BUTTON.again"} <= {name for name, _ in found}
        assert [(name, ratio) for name, ratio in found if ratio < 4.5] == []


def test_the_keyboard_alone_is_enough(opened, serving, fake):
    fake.then(reasoning("Hm."), content("Half"), Event())
    fake.then(content("Whole"), delta("stop"))
    with serving(fake.app) as url, opened(url, settings=False) as tab:
        keys = tab.keyboard
        assert tab.evaluate("document.activeElement.id") == "prompt"
        keys.type("first line")
        keys.press("Shift+Enter")
        keys.type("second line")
        assert fake.bodies == []
        keys.press("Enter")
        until(tab, "document.querySelector('article')?.textContent.includes('Half')")
        assert tab.evaluate("document.activeElement.id") == "prompt"
        keys.press("Escape")
        ended(tab)
        keys.press("Alt+s")
        assert fake.bodies[0]["messages"][0]["content"] == "first line\nsecond line"
        for wanted in ("attach", "chosen", "send", "close-settings", "listed"):
            keys.press("Tab")
            assert tab.evaluate("document.activeElement.id") == wanted
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        keys.type("lookup")
        tab.evaluate("document.activeElement.blur()")
        keys.press("/")
        keys.type("again")
        keys.press("Enter")
        ended(tab, 2)
        assert fake.bodies[1]["strategy"] == "lookup"


def test_every_control_can_be_reached_in_the_order_of_the_page(tab):
    tab.check("#compare")
    tab.uncheck("#default-recover")
    tab.focus("#new")
    tab.keyboard.press("Shift+Tab")
    reached = []
    while tab.evaluate("document.activeElement !== document.body"):
        name = tab.evaluate("document.activeElement.id || document.activeElement.name || document.activeElement.className")
        ringed = "document.activeElement.id === 'prompt' ? document.querySelector('.box') : document.activeElement"
        assert tab.evaluate(f"getComputedStyle({ringed}).outlineStyle") == "solid", name
        reached.append(name)
        tab.keyboard.press("Tab")
    start = ["skip", "new", "export", "import", "theme", "help", "list", "origins", "toggle", "log"]
    start += ["suggestion"] * 3 + ["prompt", "attach", "chosen", "send", "close-settings"]
    start += ["listed", "strategy", "compare", "listed2", "strategy2"]
    assert reached[: len(start)] == start
    assert {"temperature", "top_p", "seed", "max_tokens", "system", "thinking", "tools", "example"} <= set(reached)
    assert {"default-recover", "recover:loop", "value:loop"} <= set(reached)
