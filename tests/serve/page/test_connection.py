"""The page while the model loads, while the server is gone, and after a cut stream."""

import socket
from contextlib import contextmanager
from threading import Event

import pytest
import uvicorn
from browsing import ask, ended, last, until
from chat_fake import content, delta, step

from dflash.serve.startup.loading import LoadingServer
from dflash.serve.startup.sockets import listening, url_of

ERRORS = ["503", "ERR_", "Failed to load"]


def test_the_page_waits_while_the_model_loads_and_goes_on_by_itself(browser, fake, serving_on):
    tab = browser.new_page()
    with listening("127.0.0.1", 0) as sockets:
        with LoadingServer(sockets):
            tab.goto(url_of(sockets))
            tab.wait_for_selector("#connection-title:has-text('The model is loading')")
            ask(tab)
            tab.wait_for_selector("#status:has-text('The model is still loading')")
            assert tab.input_value("#prompt") == "Hello"
            assert not tab.is_visible("#suggestions")
        with serving_on(sockets, fake.app):
            until(tab, "connection.ready")
            assert not tab.is_visible("#connection")
            tab.wait_for_selector(".suggestion")
            fake.then(content("Hi"), delta("stop"))
            tab.press("#prompt", "Enter")
            ended(tab)
    tab.close()


@pytest.fixture
def serving_on():
    """Serves an app on sockets that are open."""
    import threading

    from hang_guard import wait_until

    @contextmanager
    def serve(sockets, app):
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([each.dup() for each in sockets],))
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()

    return serve


def test_a_server_that_is_gone_is_noticed_and_found_again(browser, fake, serving_on):
    tab = browser.new_page()
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
        with serving_on([reserved], fake.app):
            tab.goto(f"http://127.0.0.1:{port}")
            until(tab, "connection.ready")
    ask(tab)
    tab.wait_for_selector("#connection-title:has-text('The server does not answer')")
    assert "Is it still running?" in last(tab, "[role=alert]").inner_text()
    assert "Failed to fetch" not in tab.inner_text("body")
    tab.click("#connection-retry")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
        again.listen()
        with serving_on([again], fake.app):
            until(tab, "connection.ready")
            fake.then(content("Back"), delta("stop"))
            tab.click("text=Try again")
            ended(tab)
            assert last(tab, "> .text").inner_text() == "Back"
            tab.close()


def cut(tab):
    """Break the stream of the running answer as a lost network does."""
    tab.evaluate("cutStream()")


@pytest.fixture
def cuttable(tab):
    """The page with a network that the test can cut."""
    tab.evaluate("""() => {
      const real = fetch;
      window.fetch = async (path, options) => {
        const response = await real(path, options);
        if (!path.includes("completions")) return response;
        const cut = (controller) => (window.cutStream = () => controller.error(new TypeError("network error")));
        const { status, headers } = response;
        return new Response(response.body.pipeThrough(new TransformStream({ start: cut })), { status, headers });
      };
    }""")
    return tab


def test_a_cut_stream_keeps_the_partial_answer(cuttable, fake):
    fake.then(content("Half of it", **step(2)), Event())
    ask(cuttable, "One")
    cuttable.wait_for_selector("article:has-text('Half of it')")
    cut(cuttable)
    ended(cuttable)
    assert "What had arrived is kept." in last(cuttable, "[role=alert]").inner_text()
    assert "cut off" in last(cuttable, ".numbers").inner_text()
    assert last(cuttable, "> .text").inner_text() == "Half of it"
    fake.then(content("Next"), delta("stop"))
    ask(cuttable, "Two")
    ended(cuttable, 2)
    assert [(each["role"], each["content"]) for each in fake.bodies[1]["messages"]] == [
        *[("user", "One"), ("assistant", "Half of it"), ("user", "Two")],
    ]


def test_two_messages_of_the_user_never_follow_each_other(cuttable, fake):
    fake.then(Event())
    ask(cuttable, "One")
    until(cuttable, "window.cutStream")
    cut(cuttable)
    ended(cuttable)
    fake.then(content("Both"), delta("stop"))
    ask(cuttable, "Two")
    ended(cuttable, 2)
    assert [(each["role"], each["content"]) for each in fake.bodies[1]["messages"]] == [("user", "One\n\nTwo")]
