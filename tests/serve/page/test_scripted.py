"""The page in a browser, on a server whose every chunk the test decides."""

from threading import Event

import pytest
from browsing import ask, choose, ended, last, until
from chat_fake import call, content, delta, reasoning, step, usage
from hang_guard import wait_until
from starlette.responses import JSONResponse


def test_text_appears_while_the_stream_is_open(tab, fake):
    rest = Event()
    fake.then(content("", **step(0)), content("Hel", **step(1, 4, 0)), content("lo", **step(3, 4, 2)), rest,
              content(" there", **step(2, 2, 1)), delta("stop"), usage(20, 6, cached=16))  # fmt: skip
    ask(tab, "Hi")
    until(tab, "document.querySelector('article .text:not(details *)').textContent === 'Hello'")
    assert tab.get_attribute("article", "aria-busy") == "true"
    assert tab.locator(".strip > span").count() == 2
    assert tab.is_visible("#stop")
    rest.set()
    ended(tab)
    assert last(tab, "> .text").inner_text() == "Hello there"
    assert tab.locator(".strip > span").count() == 3
    bars = tab.locator(".strip > span").nth(1).locator("i")
    counts = {bar.get_attribute("class"): bar.evaluate("bar => bar.style.getPropertyValue('--n')") for bar in bars.all()}
    assert counts == {"rejected": "2", "bonus": "1", "accepted": "2"}
    assert tab.get_attribute(".strip", "aria-label") == "3 steps, 6 tokens"
    numbers = last(tab, ".numbers").inner_text()
    for part in ("6 tokens", "2.00 per step", "30 % of 10 draft", "prompt of 20 tokens", "16 from the cache", "finished"):
        assert part in numbers
    sent = fake.bodies[0]
    assert sent["messages"] == [{"role": "user", "content": "Hi"}]
    assert sent["stream"]
    assert sent["dflash"] == {"steps": True, "tokens": True}
    assert "strategy" not in sent


def test_escape_stops_and_the_conversation_goes_on(tab, fake):
    fake.then(content("Half", **step(1)), Event())
    fake.then(content("Whole"), delta("stop"))
    ask(tab, "One")
    until(tab, "document.querySelector('article')?.textContent.includes('Half')")
    tab.keyboard.press("Escape")
    ended(tab)
    wait_until(lambda: fake.left == 1)
    assert "stopped by you" in last(tab, ".numbers").inner_text()
    ask(tab, "Two")
    ended(tab, 2)
    assert [message["content"] for message in fake.bodies[1]["messages"]] == ["One", "Half", "Two"]


def test_reasoning_is_open_while_it_streams(tab, fake):
    thought, rest = Event(), Event()
    fake.then(reasoning("Let me "), reasoning("see."), thought, content("Seven."), rest, delta("stop"))
    ask(tab)
    until(tab, "document.querySelector('details').open && document.querySelector('details').innerText.includes('see.')")
    thought.set()
    until(tab, "!document.querySelector('details').open")
    rest.set()
    ended(tab)
    assert last(tab, "> .text").inner_text() == "Seven."
    tab.click("summary")
    assert "Let me see." in last(tab, "details").inner_text()


def test_results_of_tools_are_typed_and_the_model_goes_on(tab, fake):
    rest = Event()
    fake.then(reasoning("I need two."), call(0, name="get_weather", arguments=""), call(0, arguments='{"city": "Ro'), rest,
              call(0, arguments='me"}'), call(1, name="get_time", arguments="{}"), delta("tool_calls"))  # fmt: skip
    fake.then(content("Sunny, noon."), delta("stop"))
    tab.click("#example")
    ask(tab, "Weather and time?")
    until(tab, "document.querySelector('.call pre')?.textContent === '{\"city\": \"Ro'")
    rest.set()
    ended(tab)
    assert [heading.inner_text() for heading in tab.locator(".call h3").all()] == ["get_weather", "get_time"]
    assert tab.evaluate("document.activeElement.labels[0].textContent") == "Result of get_weather"
    tab.keyboard.type("sunny")
    tab.keyboard.press("Enter")
    tab.keyboard.type("12:00")
    tab.keyboard.press("Enter")
    ended(tab, 2)
    first, second = fake.bodies
    assert first["tools"][0]["function"]["name"] == "get_weather"
    asked, *results = second["messages"][1:]
    assert asked["reasoning_content"] == "I need two."
    assert [each["id"] for each in asked["tool_calls"]] == ["call_0", "call_1"]
    assert asked["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert results == [
        {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    assert last(tab, "> .text").inner_text() == "Sunny, noon."
    assert tab.evaluate("document.activeElement.id") == "prompt"


@pytest.mark.parametrize(("texts", "verdict"), [(("Same", "Same"), "identical"), (("One", "Two"), "differ")])
def test_two_strategies_are_streamed_at_the_same_time(tab, fake, texts, verdict):
    rest = Event()
    for text in texts:
        fake.then(content(text), rest, delta("stop"))
    tab.check("#compare")
    choose(tab, strategy="mtp:3", temperature="0.7")
    ask(tab)
    wait_until(lambda: fake.open == 2)
    until(tab, "[...document.querySelectorAll('article > .text')].every(each => each.textContent)")
    rest.set()
    ended(tab, 2)
    tab.wait_for_selector(f".verdict:has-text('{verdict}')")
    assert tab.locator(".numbers").count() == 2
    one, other = fake.bodies
    assert {one.pop("strategy"), other.pop("strategy")} == {"mtp:3", "plain"}
    assert one == other
    assert isinstance(one["seed"], int)


def test_speed_is_measured_against_plain_one_after_the_other(tab, fake):
    pauses = [Event() for _ in range(3)]
    for pause in pauses:
        fake.then(content("a", **step(1)), pause, content("b", **step(3, 3, 2)), delta("stop"))
    choose(tab, strategy="lookup")
    ask(tab)
    tab.wait_for_selector("article > .numbers:has-text('1 token')")
    pauses[0].set()
    tab.click("text=Measure against plain decoding")
    for pause, name in zip(pauses[1:], ("lookup", "plain"), strict=True):
        tab.wait_for_selector(f".below .numbers:has-text('{name} alone · 1 token')")
        assert fake.open == 1
        pause.set()
    tab.wait_for_selector("text=/plain: [0-9.]+ tok.s. lookup: [0-9.]+ tok.s, [0-9.]+ times its speed; same text/")
    shown, *measured = fake.bodies
    assert "cache_prompt" not in shown
    assert [body.pop("strategy") for body in measured] == ["lookup", "plain"]
    assert measured[0] == measured[1]
    assert measured[0]["cache_prompt"] is False


def test_the_first_use_of_a_strategy_is_not_its_speed(tab, fake):
    pauses = [Event() for _ in range(4)]
    for pause, warm_up in zip(pauses, (True, False, True, False), strict=True):
        flag = {"warm_up": True} if warm_up else {}
        fake.then(content("a", **step(1, **flag)), pause, content("b", **step(3, 3, 2, **flag)), delta("stop"))
    pauses[0].set()
    choose(tab, strategy="lookup")
    ask(tab)
    ended(tab)
    numbers = last(tab, "> .numbers").inner_text()
    assert "warm-up: first use here, speed not counted" in numbers
    assert "tok/s" not in numbers
    for pause in pauses:
        pause.set()
    tab.click("text=Measure against plain decoding")
    tab.wait_for_selector(".measured")
    assert [body["strategy"] for body in fake.bodies] == ["lookup", "lookup", "plain", "plain"]


def test_settings_reach_the_request_and_survive_a_reload(tab, fake):
    fake.then(content("a", interventions=["loop: ended a loop"]), delta("stop"))
    choose(tab, strategy="lookup:8", temperature="0.5", top_p="0.9", seed="7", max_tokens="50", system="Be brief.")
    tab.select_option("#thinking", "false")
    tab.uncheck("#default-recover")
    tab.check("[name='recover:loop']")
    tab.check("[name='recover:min']")
    tab.fill("[name='value:min']", "20")
    tab.reload()
    until(tab, "document.getElementById('strategy').value === 'lookup:8'")
    ask(tab)
    ended(tab)
    sent = fake.bodies[0]
    expected = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "max_tokens": 50,
        "strategy": "lookup:8",
        "recover": ["loop", "min:20"],
    }
    assert {name: sent[name] for name in expected} == expected
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert "loop: ended a loop" in last(tab, ".below").inner_text()


def test_wrong_settings_are_named_before_anything_is_sent(tab, fake):
    tab.fill("#tools", "[{")
    ask(tab)
    tab.wait_for_selector("#status:has-text('Not JSON')")
    assert tab.get_attribute("#tools", "aria-invalid") == "true"
    assert tab.input_value("#prompt") == "Hello"
    tab.fill("#tools", "")
    tab.fill("#top_p", "3")
    ask(tab)
    tab.wait_for_selector("#status:has-text('Top-p')")
    assert fake.bodies == []


def test_a_refusal_and_a_failed_stream_can_be_tried_again(opened, serving, fake):
    fake.then(JSONResponse({"error": {"message": "there is no mtp head"}}, status_code=400))
    fake.then(content("Half"), {"error": {"message": "the engine failed"}})
    fake.then(content("Whole"), delta("stop"))
    with serving(fake.app) as url, opened(url, expected=["400"]) as tab:
        ask(tab)
        for message in ("there is no mtp head", "the engine failed"):
            tab.wait_for_selector(f"[role=alert]:has-text('{message}')")
            tab.wait_for_selector("#status:has-text('The answer failed.')")
            tab.click("text=Try again")
        ended(tab)
        assert last(tab, "> .text").inner_text() == "Whole"
        assert [message["content"] for message in fake.bodies[2]["messages"]] == ["Hello"]


def test_a_new_chat_forgets_and_stops(tab, fake):
    fake.then(content("Half"), Event())
    fake.then(content("New"), delta("stop"))
    ask(tab, "Old")
    tab.wait_for_selector("article:has-text('Half')")
    tab.click("#new")
    wait_until(lambda: fake.left == 1)
    ask(tab, "Fresh")
    ended(tab)
    assert [message["content"] for message in fake.bodies[1]["messages"]] == ["Fresh"]
