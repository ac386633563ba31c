"""Markdown and highlighting in Node, without a browser: structure, hostile text, places in the source, cost."""

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

SCRIPTS = ("shell/dom", "markdown/source", "markdown/blocks", "markdown/inline", "markdown/highlight", "markdown/view")

DOM = Path(__file__).parents[2] / "support" / "node_dom.js"


@pytest.fixture(scope="module")
def node():
    """Evaluates an expression of JavaScript beside the page's Markdown, with an `input`; returns its value."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("needs Node: apt-get install nodejs")
    page = files("dflash.serve.page")
    scripts = "".join(page.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    head = (
        f"{scripts}\n{DOM.read_text(encoding='utf-8')}\nconst input = JSON.parse(require('fs').readFileSync(0, 'utf8'));\n"
    )

    def evaluate(expression, value=None):
        source = f"{head}console.log(JSON.stringify({expression}));"
        run = subprocess.run([program, "-e", source], input=json.dumps(value), capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    return evaluate


CASES = {
    "a *b* **c** `d` ~~e~~ __f__ _g_": [
        *[["p", "a ", ["em", "b"], " ", ["strong", "c"], " ", ["code", "d"], " ", ["del", "e"], " ", ["strong", "f"], " "]],
    ],
    "# One\n## Two ##\n#no": [["h3", "One"], ["h4", "Two"], ["p", "#no"]],
    "Title\n===\n\nUnder\n---\nx": [["h3", "Title"], ["h4", "Under"], ["p", "x"]],
    "a\n\n---\n\n***": [["p", "a"], ["hr"], ["hr"]],
    "> a\n> > b\n>\n> - c": [["blockquote", ["p", "a"], ["blockquote", ["p", "b"]], ["ul", ["li", "c"]]]],
    "- a\n  - b\n    1. c\n- d": [["ul", ["li", "a", ["ul", ["li", "b", ["ol", ["li", "c"]]]]], ["li", "d"]]],
    "3. a\n\n   more\n\n4. b": [["ol", ["li", ["p", "a"], ["p", "more"]], ["li", ["p", "b"]]]],
    "- a\n  ```py\n  x\n  ```\n- [x] done\n- [ ] open": [
        [
            "ul",
            ["li", "a", ["div", ["div", ["span", "py"], ["button", ["svg", ["path"]]]], ["pre", ["code", "x"]]]],
            ["li", "\u2611 done"],
            ["li", "\u2610 open"],
        ],
    ],
    "| a | b |\n|---|:-:|\n| 1 | `x|y` |\n| 2 |": [
        [
            "table",
            ["thead", ["tr", ["th", "a"], ["th", "b"]]],
            ["tbody", ["tr", ["td", "1"], ["td", ["code", "x|y"]]], ["tr", ["td", "2"], ["td"]]],
        ],
    ],
    "a | b\nno table": [["p", "a | b\nno table"]],
    '[x](https://a.example/b_(c) "t") <https://d.example> https://e.example/f.': [
        [
            "p",
            ["a", {"href": "https://a.example/b_(c)"}, "x"],
            " ",
            ["a", {"href": "https://d.example/"}, "https://d.example"],
            " ",
            ["a", {"href": "https://e.example/f"}, "https://e.example/f"],
            ".",
        ],
    ],
    "![alt](https://a.example/i.png) [m](mailto:a@b.example)": [
        ["p", ["a", {"href": "https://a.example/i.png"}, "alt"], " ", ["a", {"href": "mailto:a@b.example"}, "m"]],
    ],
    "\\*no\\* snake_case_name 2 * 3 * 4": [["p", "*no* snake_case_name 2 * 3 * 4"]],
    "```\nopen": [["pre", ["code", "open"]]],
    "````md\n```\ninner\n```\n````\nafter": [["pre", ["code", "```\ninner\n```"]], ["p", "after"]],
    "- a\nlazy\n\nnew": [["ul", ["li", "a\nlazy"]], ["p", "new"]],
}
CASES["a *b* **c** `d` ~~e~~ __f__ _g_"][0].append(["em", "g"])


def test_markdown_becomes_these_elements(node):
    assert node("input.map(render)", list(CASES)) == list(CASES.values())


HOSTILE = [
    "[x](javascript:alert(1))",
    "[x](JAVASCRIPT:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:x)",
    "[x](//evil.example)",
    "[x](/relative)",
    "[x](file:///etc/passwd)",
    "<javascript:alert(1)>",
    "[x]( javascript:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](blob:https://a.example/1)",
    "![x](javascript:alert(1))",
    "<script>alert(1)</script>",
    "[](x)",
]


def test_hostile_text_never_becomes_a_link_or_markup(node):
    for text, tree in zip(HOSTILE, node("input.map(render)", HOSTILE), strict=True):
        assert '"a"' not in json.dumps(tree), text
        assert '"script"' not in json.dumps(tree), text


def test_links_tell_the_other_site_nothing(node):
    assert node("linkNode('https://a.example/').attributes.rel") == "noopener noreferrer nofollow"


TEXT = "\n\n".join(CASES) + "\n\n```python\ndef f(x):  # a\n    return 'b'\n```\n"


def test_every_shown_character_knows_its_place(node):
    """The places of all painted characters hold these characters in the source, each place once."""
    painted = node(
        """(() => {
      const places = [];
      const paint = (element, source, from, to) => {
        for (const { text, at } of source.parts(from, to)) places.push([at, text]);
        paintText(element, source, from, to);
      };
      const view = new MarkdownView(new Node("div"), paint);
      view.append(input);
      view.draw(true);
      return places;
    })()""",
        TEXT,
    )
    assert all(TEXT[at : at + len(text)] == text for at, text in painted)
    seen = [place for at, text in painted for place in range(at, at + len(text))]
    assert len(seen) == len(set(seen)) > 200


@pytest.mark.parametrize("size", [1, 3, 7])
def test_growing_text_looks_as_the_whole_does(node, size):
    grown, whole = node(
        """[(() => {
      const view = new MarkdownView(new Node("div"));
      for (let i = 0; i < input[0].length; i += input[1]) {
        view.append(input[0].slice(i, i + input[1]));
        view.draw();
      }
      view.draw(true);
      return shown(view);
    })(), render(input[0])]""",
        [TEXT, size],
    )
    assert grown == whole


LONG = {
    "paragraphs": "Some words and `code` here.\n\n",
    "paragraph": "word **bold** and `code`, ",
    "code": "    total = total + 1  # comment\n",
    "list": "- an item with *words*\n",
    "table": "| a | b |\n",
    "quote": "> a quoted line\n",
}
OPENING = {"code": "```python\n", "table": "| x | y |\n|---|---|\n"}


@pytest.mark.parametrize("kind", LONG)
def test_a_long_answer_costs_time_in_its_length(node, kind):
    """Characters that are read and nodes that are made grow with the text, not with its square."""
    costs = node(
        """input.map((text) => {
      let read = 0;
      const before = made;
      const real = markdownBlocks;
      const view = new MarkdownView(new Node("div"));
      const build = view.build.bind(view);
      view.build = () => { read += view.text.length; build(); };
      for (let i = 0; i < text.length; i += 40) {
        view.append(text.slice(i, i + 40));
        view.draw();
      }
      view.draw(true);
      return [read, made - before];
    })""",
        [OPENING.get(kind, "") + LONG[kind] * (n // len(LONG[kind])) for n in (20_000, 80_000)],
    )
    (read, nodes), (more_read, more_nodes) = costs
    assert more_read < 6 * read
    assert more_nodes < 6 * max(nodes, 10_000)


NASTY = [
    "[" * 50_000,
    "*" * 50_000,
    "`" * 50_000,
    "**a " * 20_000,
    "> " * 20_000,
    "- " * 20_000,
    "_a" * 30_000,
    "~~" * 30_000,
    "# " + " " * 50_000 + "x",
    "|" * 50_000 + "\n" + "-|" * 25_000,
    "a|b\n" + "-" + " " * 50_000 + "x",
    "<" * 50_000,
    "```" + "a" * 50_000 + "`",
    "[a](" * 20_000,
    "https://" * 10_000,
    "\\" * 50_000,
    "![" * 30_000,
    "- " * 9 + "\n" * 50_000,
]


def test_nasty_text_takes_no_long_time(node):
    """Quadratic patterns would need minutes here; Node ends them after its own bound."""
    assert len(node("input.map((text) => render(text).length)", NASTY)) == len(NASTY)


CODE = {
    "python": (
        'def f(x):  # hi\n    return \'a\' + """b\n""" + 1.5e3',
        {"key": ["def", "return"], "call": ["f"], "comment": ["# hi"], "string": ["'a'", '"""b\n"""'], "number": ["1.5e3"]},
    ),
    "js": (
        "const a = `x`; // y\nfoo(0xff)",
        {"key": ["const"], "string": ["`x`"], "comment": ["// y"], "call": ["foo"], "number": ["0xff"]},
    ),
    "sql": ("SELECT 'it' FROM t -- c", {"key": ["SELECT", "FROM"], "string": ["'it'"], "comment": ["-- c"]}),
    "html": ('<a href="x"><!-- c --></a>', {"key": ["<a", ">", "</a", ">"], "string": ['"x"'], "comment": ["<!-- c -->"]}),
    "json": ('{"a": [true, 2]}', {"string": ['"a"'], "key": ["true"], "number": ["2"]}),
    "bash": ("if x; then echo $#; fi # end", {"key": ["if", "then", "echo", "fi"], "comment": ["# end"]}),
    "nothing": ("def f(): pass", {}),
}


def test_code_is_coloured_by_its_language(node):
    found = node(
        """input.map(([language, text]) =>
        [...highlighted(text, language)].map(({ from, to, kind }) => [kind, text.slice(from, to)]))""",
        [[language, text] for language, (text, _) in CODE.items()],
    )
    for (language, (_, expected)), parts in zip(CODE.items(), found, strict=True):
        kinds = {}
        for kind, text in parts:
            kinds.setdefault(kind, []).append(text)
        assert kinds == expected, language
