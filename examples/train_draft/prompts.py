"""Beginnings of texts for the training of a draft: requests to a chat model, source code and prose.

Two thirds of the requests are the model's own: it continues the header of a user's turn. They are like those that it was
trained with. None of the prompts is one of `dflash.load_prompts`, which measure the draft afterwards. For other requests,
record those.
"""

import ast
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from pydoc_data import topics as manual
from typing import Any

import numpy as np

import dflash

from .recording import continued

SETS = "code", "copy", "prose", "agent"
"""Sets of prompts that measure a draft."""

AT_ONCE = 128
"""Requests that a model writes together."""

TOPICS = """\
the water cycle|black holes|inflation|the French Revolution|photosynthesis|vaccines|volcanoes|jazz|chess
the Roman Empire|coffee|bread|public transport|solar panels|earthquakes|the human heart|sleep|stress at work
a job interview|learning a language|running a marathon|growing tomatoes|a small garden|cats|dogs|bees|whales
rain forests|deserts|the Moon|Mars|rockets|gravity|magnets|electricity|batteries|bridges|skyscrapers|museums|libraries
poetry|a short story about a lighthouse|a detective in Venice|a robot that paints|a lost letter|friendship|courage
patience|honesty|money for students|saving energy|recycling|clean water|a healthy breakfast|vegetarian cooking|pasta
soup|chocolate cake|tea in Japan|a trip to Norway|a week in Mexico|hiking in the Alps|sailing|swimming|yoga|football
tennis|the Olympic Games|the printing press|the steam engine|the telephone|the internet|search engines|encryption
databases|operating systems|compilers|machine learning|neural networks|sorting algorithms|binary search|recursion
linked lists|hash tables|trees and graphs|version control|unit tests|code review|web servers|caching|message queues
JSON|regular expressions|time zones|random numbers|probability|prime numbers|fractions|triangles|statistics
a birthday party|a wedding speech|an apology to a customer|a complaint about a late delivery|a letter to a landlord
a thank-you note|a farewell e-mail|remote work|meetings|time management|teamwork|a business plan for a bakery
marketing for a small shop|pricing|taxes|insurance|contracts|climate change|the ozone layer|rivers|glaciers|penguins
dinosaurs|evolution|DNA|bacteria|antibiotics|allergies|first aid|eyesight|hearing|memory|the violin|the piano
film music|photography|painting with watercolors|sculpture|architecture|fashion|theatre|dance|video games|board games
puzzles|the Silk Road|ancient Egypt|the Vikings|the Renaissance|the Industrial Revolution|the Cold War|democracy
human rights|the United Nations|elections"""
"""Subjects of requests."""

REQUESTS = """\
Explain {} to a child.|Explain {} in detail.|Write a short text about {}.|Write an e-mail about {}.
What are the main facts about {}?|Give me ten tips about {}.|List the advantages and disadvantages of {}.
Write a poem about {}.|Tell me a story about {}.|How does one begin with {}?
Summarize what is known about {} in three sentences.|Write a dialogue between two friends about {}.
What are common mistakes with {}?|Make a table with five facts about {}.
Write a quiz of five questions about {}, with answers.|Compare {} and {}.|What have {} and {} in common?
Write an introduction to a book about {}.|Write a blog post about {}.|Why is {} important?|Plan a lesson about {}.
What is the history of {}?|Give definitions of the most important terms about {}.|Write a letter to a friend about {}.
Write a list of books about {}.|Is {} overrated?|Write a Python class for a program about {}.
Write JSON with data about {}.|Write a web page in HTML about {}.|Write an SQL query for data about {}."""

WORK = """\
Explain what this code does.|Add type hints to this code.|Write a docstring for this code.
Write unit tests for this code.|Rename the variables of this code.|Find a bug in this code.|Simplify this code.
Rewrite this code as a class.|Add comments to this code.|Add error handling to this code.
Write this code again without changes."""
"""Requests that a piece of code follows."""

ABOUT_TEXT = """\
Summarize this text.|Rewrite this text in simple words.|Which questions does this text answer?|Correct this text.
Write the next paragraph."""
"""Requests that a paragraph follows."""


def mixed(lm: dflash.LM, *, seed: int = 0, longest: int = 384, at_once: int = AT_ONCE) -> Iterator[list[int]]:
    """Yield prompts without end, as token ids: half of them chats (if the model has a template), the others code and prose.

    Parameters
    ----------
    longest : int
        Most tokens of a prompt.
    at_once : int
        Requests that the model writes together.
    """
    chance, code, prose = np.random.default_rng(seed), _functions(), _paragraphs()
    own = _own_requests(lm, chance, at_once) if lm.template is not None else None
    measured = {tuple(lm.encode(case.prompt)) for name in SETS for case in dflash.load_prompts(name)}

    def one(of: Sequence[str]) -> str:
        return of[int(chance.integers(len(of)))]

    requests, work, about = (_list(text) for text in (REQUESTS, WORK, ABOUT_TEXT))
    topics = _list(TOPICS)
    chats: list[Callable[[], str]] = [
        lambda: (request := one(requests)).format(*(one(topics) for _ in range(request.count("{}")))),
        lambda: f"{one(work)}\n\n```python\n{one(code)}\n```",
        lambda: f"{one(about)}\n\n{one(prose)}",
    ]
    while True:
        if own is None or chance.random() < 0.5:
            ids = lm.encode(_beginning(one(code if chance.random() < 0.6 else prose), chance.uniform(0.1, 0.9)))
        elif chance.random() < 2 / 3:
            ids = next(own)
        else:
            ids = lm.encode([{"role": "user", "content": chats[int(chance.choice(3, p=(0.7, 0.2, 0.1)))]()}])
        if 2 <= len(ids) <= longest and tuple(ids) not in measured:
            yield ids


def _own_requests(lm: dflash.LM, chance: np.random.Generator, at_once: int) -> Iterator[list[int]]:
    """Yield chats whose request the model wrote, without end; a third offers tools, and half may think before the answer."""
    offered = [case.options["tools"] for case in dflash.load_prompts("agent")]
    asked = [dflash.load_prompts(name) for name in SETS]
    measured = {case.prompt[0]["content"] for cases in asked for case in cases if not isinstance(case.prompt, str)}
    while True:
        kinds = [offered[int(chance.integers(len(offered)))] if chance.random() < 1 / 3 else None for _ in range(at_once)]
        headers = [_header(lm, tools) for tools in kinds]
        seeds = chance.integers(1 << 31, size=at_once).tolist()
        for tools, header, text in zip(
            kinds, headers, continued(lm, headers, 48, seeds=seeds, temperature=1.0), strict=True
        ):
            request = lm.tokenizer.decode(text.tokens[len(header) :], skip_special=True).strip()
            if request and request not in measured:
                messages = [{"role": "user", "content": request}]
                yield lm.encode(messages, tools=tools, enable_thinking=bool(chance.random() < 0.5))


def _header(lm: dflash.LM, tools: Sequence[Any] | None) -> list[int]:
    """Return a prompt up to the place where the user's request begins."""
    mark = "REQUEST"
    whole = lm.tokenizer.decode(lm.encode([{"role": "user", "content": mark}], tools=tools))
    return lm.encode(whole[: whole.rindex(mark)])


def _list(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


def _beginning(text: str, share: float) -> str:
    """Return the first lines or words of a text."""
    parts = text.splitlines(keepends=True) if "\n" in text else text.split(" ")
    return ("" if "\n" in text else " ").join(parts[: max(1, int(len(parts) * share))])


@cache
def _functions() -> list[str]:
    """Return functions and classes of Python's standard library."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_text("utf-8", "ignore")
        lines = source.splitlines(keepends=True)
        named = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        found += ["".join(lines[node.lineno - 1 : node.end_lineno]) for node in named]
    return [text for text in found if 100 < len(text) < 2500]


@cache
def _paragraphs() -> list[str]:
    """Return paragraphs of Python's manual, as `help` shows it, each in one line."""
    found = [" ".join(part.split()) for text in manual.topics.values() for part in text.split("\n\n")]
    return [text for text in found if 150 < len(text) < 1500 and text[0].isupper()]
