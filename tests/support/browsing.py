"""Actions of a user of the page in a browser, and waits for elements of the page."""

from hang_guard import wait_until


def until(tab, expression):
    """Wait until a JavaScript expression is true.

    Playwright's own `wait_for_function` needs `eval` in the page, which the page's policy refuses.
    """
    wait_until(lambda: tab.evaluate(f"Boolean({expression})"))


def ask(tab, text="Hello"):
    """Send a message with the keyboard."""
    tab.fill("#prompt", text)
    tab.press("#prompt", "Enter")


def ended(tab, n=1):
    """Wait until `n` completions have ended, another message can be sent, and the conversation is saved."""
    until(
        tab,
        f"document.querySelectorAll('article[aria-busy=false]').length === {n} && !document.getElementById('send').hidden",
    )
    tab.evaluate("thread.saving?.then(() => null)")


def choose(tab, **values):
    """Fill fields of the settings by their names."""
    for name, value in values.items():
        tab.fill(f"#settings [name={name}]", value)


def last(tab, part):
    """Return an element of the last completion."""
    return tab.locator("article").last.locator(part)
