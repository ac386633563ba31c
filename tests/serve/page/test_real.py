"""The page on the real server with the demo model."""

import httpx
import pytest
from browsing import ask, choose, ended, last, until
from hang_guard import GUARD, wait_until

from dflash.serve.strategy_choice import Defaults

PROMPT = "Write a Python function that adds two numbers."


@pytest.fixture
def live(opened, server):
    """The page of the server with the demo model."""
    with opened(server.url) as tab:
        yield tab


def test_the_page_shows_the_servers_completion(live, server):
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 60}
    message = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=GUARD).json()["choices"][0]["message"]
    choose(live, strategy="lookup", max_tokens="60")
    ask(live, PROMPT)
    ended(live)
    assert live.evaluate("messagesOf(thread.items)[1].reasoning_content ?? ''") == message.get("reasoning_content", "")
    assert live.evaluate("messagesOf(thread.items)[1].content") == (message["content"] or "")
    assert live.inner_text("#model") == "demo"
    assert "draft tokens accepted" in last(live, ".numbers").inner_text()
    assert last(live, ".strip > span").count() > 3


def test_stopping_ends_the_request(live, server):
    live.uncheck("#default-recover")
    live.check("[name='recover:min']")
    live.fill("[name='value:min']", "20000")
    ask(live, "Tell a very long story.")
    until(live, "document.querySelector('.strip')?.childElementCount > 2")
    live.keyboard.press("Escape")
    ended(live)
    wait_until(lambda: not server.engine_thread.engine.busy)
    assert "stopped by you" in last(live, ".numbers").inner_text()


def test_two_strategies_give_identical_texts(live):
    live.check("#compare")
    choose(live, strategy="lookup", temperature="0.8", max_tokens="40")
    ask(live, PROMPT)
    ended(live, 2)
    assert [title.inner_text() for title in live.locator("article h2").all()] == ["lookup", "plain"]
    assert live.inner_text(".verdict").startswith("The texts are identical.")


def test_the_key_is_asked_for_and_stays_in_the_tab(opened, serving, app_of):
    with serving(app_of("Hello", " there", api_key="secret")) as url, opened(url, expected=["401"]) as tab:
        assert tab.evaluate("document.activeElement.id") == "key-value"
        tab.keyboard.press("Escape")
        tab.wait_for_selector("#status:has-text('API key')")
        ask(tab)
        until(tab, "byId('key').open")
        for key in ("wrong", "secret"):
            until(tab, "document.activeElement.id === 'key-value' && byId('key-value').value === ''")
            tab.keyboard.type(key)
            tab.keyboard.press("Enter")
        ended(tab)
        assert "Hello there" in tab.locator("article").last.text_content()
        assert tab.evaluate("Object.values(sessionStorage).includes('secret')")
        assert not tab.evaluate("Object.values(localStorage).some(each => each.includes('secret'))")
        tab.reload()
        tab.wait_for_selector("#model:has-text('demo')")
        assert not tab.evaluate("byId('key').open")


def test_a_server_without_a_choice_of_strategies_offers_none(opened, serving, app_of):
    with serving(app_of(defaults=Defaults(allowed=()))) as url, opened(url) as tab:
        assert tab.is_visible("#fixed")
        assert not tab.is_visible("#strategy")
