"""Libraries for agents, on the recipes of ``docs/libraries.md``: a tool is offered, called, and its result is used.

``pytest -m clients`` runs these tests. A library that can't be imported is skipped. Nothing is downloaded.
"""

import asyncio
import gc
import re
import socket
from contextlib import contextmanager

import httpx
import pytest
from agent_server import Agent, serving
from client_recipes import ADDRESS, DOCS, called
from hang_guard import GUARD

from dflash.decode.engine import Engine
from dflash.serve.limits import Limits

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

TASK = "How is the weather? Use the tool."
CITY = "Å \"<&>\n'{}"
RESULT = f"rain in {CITY}"
END = "It **rains**, as I found out: é"
QUESTION = "What is the capital of Japan?"


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"rain in {city}"


@pytest.fixture(autouse=True)
def connections_are_dropped():
    """The libraries leave their connections to the garbage collector, which warns."""
    yield
    gc.collect()


def with_langchain(model, stream, tool):
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = model.bind_tools([weather]) if tool else model

    def send(messages):
        if not stream:
            return bound.invoke(messages)
        chunks = list(bound.stream(messages))
        assert len(chunks) > 3
        return sum(chunks[1:], chunks[0])

    messages = [HumanMessage(TASK if tool else QUESTION)]
    while (message := send(messages)).tool_calls:
        (call,) = message.tool_calls
        messages += [message, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
    return message.text


def with_agents(model, stream, tool):
    from agents import Agent as Runnable
    from agents import Runner, function_tool

    agent = Runnable(name="Agent", model=model, tools=[function_tool(weather)] if tool else [])

    async def run():
        question = TASK if tool else QUESTION
        if not stream:
            return (await Runner.run(agent, question)).final_output
        result = Runner.run_streamed(agent, question)
        kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
        assert kinds.count("response.output_text.delta") > 3
        return result.final_output

    return asyncio.run(run())


def with_pydantic(model, stream, tool):
    from pydantic_ai import Agent as Runnable

    agent = Runnable(model, tools=[weather] if tool else [])

    async def run():
        question = TASK if tool else QUESTION
        if not stream:
            return (await agent.run(question)).output
        async with agent.run_stream(question) as result:
            parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
        assert len(parts) > 3
        return "".join(parts)

    return asyncio.run(run())


RECIPES = [
    ("LangChain", "langchain_openai", "chat", with_langchain),
    ("LangChain", "langchain_openai", "responses", with_langchain),
    ("LangChain", "langchain_anthropic", "messages", with_langchain),
    ("OpenAI Agents SDK", "agents", "chat", with_agents),
    ("OpenAI Agents SDK", "agents", "responses", with_agents),
    ("Pydantic AI", "pydantic_ai", "chat", with_pydantic),
    ("Pydantic AI", "pydantic_ai", "responses", with_pydantic),
    ("Pydantic AI", "pydantic_ai", "messages", with_pydantic),
]
IDS = [f"{package}-{name}" for _, package, name, _ in RECIPES]
every_recipe = pytest.mark.parametrize(("heading", "package", "name", "use"), RECIPES, ids=IDS)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def made(heading, name, url):
    """The model that a recipe of the page makes, on another address."""
    page = (DOCS / "libraries.md").read_text(encoding="utf-8").replace(ADDRESS, url)
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.M | re.S)[1]
    names = {}
    exec(re.search(r"^```py\n(.*?)^```", section, re.M | re.S)[1], names)
    return names[name]


@contextmanager
def served(lm, engine, limits=Limits()):  # noqa: B008 - immutable
    with socket.create_server(("127.0.0.1", 0)) as listener, serving(lm, engine, listener, limits) as url:
        yield url


@every_recipe
@streamed_or_not
def test_a_tool_is_used(heading, package, name, use, stream, lm):
    pytest.importorskip(package, reason=f"needs {heading}")
    steps = [called("weather", {"city": CITY}), END]
    engine = Agent(lm.tokenizer, lambda prompt: steps[len(engine.prompts)])
    with served(lm, engine) as url:
        assert use(made(heading, name, url), stream, True) == END
    first, second = engine.prompts
    assert '"name": "weather"' in first
    assert f"<tool_response>\n{RESULT}\n</tool_response>" in second
    assert called("weather", {"city": CITY}) in second


def test_a_tool_is_used_by_the_loop_of_the_page(lm, capsys):
    pytest.importorskip("openai")
    steps = [called("get_weather", {"city": CITY}), END]
    engine = Agent(lm.tokenizer, lambda prompt: steps[len(engine.prompts)])
    page = (DOCS / "libraries.md").read_text(encoding="utf-8")
    section = re.search(r"^## OpenAI's client\n(.*?)^## ", page, re.M | re.S)[1]
    with served(lm, engine) as url:
        names = {}
        for code in re.findall(r"^```py\n(.*?)^```", section, re.M | re.S):
            exec(code.replace(ADDRESS, url), names)
    assert capsys.readouterr().out.strip() == END
    assert f"<tool_response>\n{RESULT}\n</tool_response>" in engine.prompts[1]


@every_recipe
@streamed_or_not
def test_the_demo_answers(heading, package, name, use, stream, lm, pools):
    """The text is the one that the server gives to a plain request. Messages do not think unless they ask for it."""
    pytest.importorskip(package, reason=f"needs {heading}")
    with served(lm, Engine(lm.model), Limits(lm.model.config.context)) as url:
        body = {
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 1000,
            "enable_thinking": name != "messages",
        }
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=GUARD).json()["choices"][0]
        text = use(made(heading, name, url), stream, False)
    assert answer["finish_reason"] == "stop"
    assert text.strip() == answer["message"]["content"].strip() != ""
