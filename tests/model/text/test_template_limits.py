"""Templates of unbounded time or memory: a count stops each, at the same place on every machine."""

import json

import jinja2
import pytest
from demo_text import DATA

import dflash.model.text.template_budget as budget
from dflash.errors import TemplateError
from dflash.model.text.chat_template import MAX_MESSAGE, MAX_SOURCE, ChatTemplate
from dflash.model.text.jinja_sandbox import environment
from dflash.model.text.template_guards import CHEAP_FILTERS, COSTS

HELLO = [{"role": "user", "content": "hi"}]
NS = "{% set ns = namespace(s='aaaaaaaa', l=[1], t=(1,), u=(1,), d={'a': 1}, x=3, g=[1]) %}"
HUNDRED = "{% for i in range(100) %}"
LAUGHS = NS + HUNDRED + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
TUPLES = NS + HUNDRED + "{% set ns.t = (ns.t, ns.t) %}{% set ns.u = (ns.u, ns.u) %}{% endfor %}"
DICTS = NS + HUNDRED + "{% set ns.d = {'a': ns.d, 'b': ns.d} %}{% endfor %}"
MANY = "{% for i in range(100000) %}"

STOPPED = {
    "power": "{{ 7 ** 6000000 }}",
    "products": NS + HUNDRED + "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "a number of many digits": "{% set x = ('f' * 10000000) | int(base=16) %}{{ x // 3 }}",
    "rounding": "{{ 5 | round(1000000000, 'ceil') }}",
    "rounding 0": "{{ 0 | round(1000000, 'ceil') }}",
    "text times a number": "{{ 'a' * 10**10 }}",
    "a number times text": "{{ 10**10 * 'a' }}",
    "list times a number": "{{ ([0] * 10**9) | length }}",
    "center": "{{ 'a'.center(5000000000) }}",
    "center as a filter": "{{ 'a' | center(5000000000) }}",
    "center in map": "{{ ['a'] | map('center', 5000000000) | list }}",
    "a filter over a block": "{% filter center(5000000000) %}a{% endfilter %}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "tabs": "{{ '\t'.expandtabs(2000000000) }}",
    "center in a block's setting": "{% autoescape 'a' | center(5000000000) %}{% endautoescape %}",
    "width of a format": "{{ '%1000000000d' % 5 }}",
    "width behind a key": "{{ '%(a(b))1000000000d' % {'a(b)': 5} }}",
    "width given apart": "{{ '%*d' % (1000000000, 5) }}",
    "precision": "{{ '%.1000000000f' % 0.1 }}",
    "format as a filter": "{{ '%1000000000d' | format(5) }}",
    "str.format": "{{ '{:>1000000000}'.format(1) }}",
    "str.format, nested": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "str.format_map": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "many fields": "{{ ('{0}' * 300000).format('a' * 1000000) }}",
    "indent": "{{ 'a\nb' | indent(10**10) }}",
    "batch": "{{ [1] | batch(10**9, 0) | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "groups that are kept": NS + MANY + "{% set ns.l = ns.l + [[1] | batch(100000, 0) | list] %}{% endfor %}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replace as a filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "join": "{{ ('a' * 1000000).join('b' * 1000000) }}",
    "join as a filter": "{{ range(100000) | map('string') | join('a' * 1000000) }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "split": "{{ ('a,' * 30000000).split(',') | length }}",
    "split at spaces": "{{ ('a ' * 30000000).split() | length }}",
    "lines": "{{ ('a\n' * 30000000).splitlines() | length }}",
    "letters": "{{ ('\u00e4' * 60000000) | list | length }}",
    "sum of lists": "{{ ([[1] * 1000] * 100000) | sum(start=[]) | length }}",
    "doubling by ~": NS + HUNDRED + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}",
    "doubling by +": NS + HUNDRED + "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
    "doubling a list": NS + HUNDRED + "{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | length }}",
    "doubling by a block": NS + HUNDRED + "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    "doubling by join": NS + HUNDRED + "{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "doubling by replace": NS + HUNDRED + "{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
    "a list that holds itself often": LAUGHS + "{{ ns.l }}",
    "the same in a text": LAUGHS + "{{ 'a' ~ ns.l }}",
    "the same, upper case": LAUGHS + "{{ ns.l | upper | length }}",
    "the same, by %s": LAUGHS + "{{ '%s' % (ns.l,) }}",
    "the same, by format": LAUGHS + "{{ '{!r}'.format(ns.l) }}",
    "the same, escaped": LAUGHS + "{% autoescape true %}{{ ns.l }}{% endautoescape %}",
    "the same as JSON": DICTS + "{{ ns.d | tojson }}",
    "the same as items": DICTS + "{{ ns.d.items() }}",
    "the same as a mapping": DICTS + "{{ ns.d.keys().mapping }}",
    "the same compared": TUPLES + "{{ ns.t == ns.u }}",
    "the same compared by a test": TUPLES + "{{ ns.t is eq(ns.u) }}",
    "the same compared by a loop": TUPLES + "{% for x in [1, 2] %}{{ loop.changed(ns.t if x == 1 else ns.u) }}{% endfor %}",
    "the same as a key": TUPLES + "{{ {1: 2}[ns.t] }}",
    "the same as a new key": TUPLES + "{{ {ns.t: 2} }}",
    "the same to get": TUPLES + "{{ {1: 2}.get(ns.t) }}",
    "arguments in arguments": NS + "{% macro m() %}{% set ns.t = varargs %}{% endmacro %}"
    "" + HUNDRED + "{% set _ = m(ns.t, ns.t) %}{% endfor %}{{ ns.t }}",
    "loops": MANY + MANY + "{% endfor %}{% endfor %}",
    "loops that pass over all": MANY + "{% for j in range(100000) if j < 0 %}{% endfor %}{% endfor %}",
    "loops that write": MANY + MANY + "x{% endfor %}{% endfor %}",
    "loops that write much": "{% set x = 'a' * 4000 %}" + MANY + MANY + "{{ x }}{% endfor %}{% endfor %}",
    "loops in a macro": "{% set x = 'a' * 4000 %}{% macro m() %}" + MANY + MANY + "{{ x ~ i }}{% endfor %}{% endfor %}"
    "{% endmacro %}{{ m() }}",
    "filters that pass over all": MANY + "{{ range(100000) | select('equalto', -1) | list }}{% endfor %}",
    "sorting": MANY + "{% set x = range(100000) | sort %}{% endfor %}",
    "calls": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "long lists of arguments": "{% macro m() %}{{ varargs | length }}{% endmacro %}"
    + MANY
    + "{{ m(*range(100000)) }}{% endfor %}",
    "searching": "{% set x = 'a' * 60000000 %}" + MANY + "{% if 'b' in x %}{% endif %}{% endfor %}",
    "long attributes": "{{ range(100000) | map(attribute='real.' * 100000 ~ 'real') | list }}",
    "splitting, kept": NS + MANY + "{% set ns.l = ns.l + [('a ' * 1000).split()] %}{% endfor %}",
    "kept groups of one": NS + MANY + "{% set ns.l = ns.l + [[1] | batch(1000000, 0)] %}{% endfor %}",
    "a field of a namespace": NS + HUNDRED + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ '{0.l}'.format(ns) }}",
    "the same, named": NS
    + HUNDRED
    + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ '{n[l]}'.format_map({'n': {'l': ns.l}}) }}",
    "finding": "{% set x = 'a' * 60000000 %}" + MANY + "{% set y = x.find('b') %}{% endfor %}",
    "counting": "{% set x = range(100000) | list %}" + MANY + "{% set y = x.count(-1) %}{% endfor %}",
    "slices": "{% set x = 'a' * 10000000 %}" + MANY + "{% set y = x[1:] %}{% endfor %}",
    "stripping": "{{ ('ab' * 10000000).strip('c' * 10000000 ~ 'ba') }}",
    "trimming": "{{ ('ab' * 10000000) | trim('c' * 10000000 ~ 'ba') }}",
    "comments": "{{ ('<!-- -->' * 1000000) | striptags }}",
    "wrapping": "{{ ('a' * 10000000) | wordwrap(1) }}",
    "links": "{{ ('http://a.b ' * 1000000) | urlize }}",
    "titles": "{{ ('a-' * 10000000) | title }}",
    "indented JSON": "{{ messages | tojson(indent=10**9) }}",
    "JSON with long separators": "{{ messages | tojson(separators=('a' * 1000000, 'b')) }}",
    "sets": "{% set d = dict.fromkeys(range(100000)) %}" + MANY + "{% set e = d.keys() - [1] %}{% endfor %}",
}


@pytest.fixture(autouse=True)
def no_deadline(monkeypatch):
    """Let the count alone end a template, however slow the machine is."""
    monkeypatch.setattr(budget, "SECONDS", float("inf"))


def plain(source):
    return ChatTemplate(source, tokens={})


@pytest.mark.parametrize("source", STOPPED.values(), ids=STOPPED)
def test_a_hostile_template_is_stopped(source, monkeypatch):
    """By a tenth of the steps that a user's template has."""
    monkeypatch.setattr(budget, "STEPS", budget.STEPS // 10)
    with pytest.raises(TemplateError, match="the chat template was stopped: it "):
        plain(source).render(HELLO)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ (5).to_bytes(10000000000, 'big') }}", "can't make bytes"),
        ("{{ 'a'.encode('punycode') }}", "can't make bytes"),
        ("{{ strftime_now('%Y' * 1000000) }}", "the format of strftime_now has 2000000 characters"),
        ("{{ lipsum(n=10**9) }}", "'lipsum' is undefined"),
        ("{{ range(10**9) | list }}", "Range too big"),
        ("{% block x %}{{ self.x() }}{{ self.x() }}{% endblock %}", "RecursionError"),
        (NS + MANY + "{% set ns.t = (ns.t,) %}{% endfor %}{{ {1: 2}[ns.t] }}", "RecursionError|nests values"),
        (NS + MANY + "{% set ns.t = (ns.t,) %}{% set x = {1: 2}[ns.t] %}{% endfor %}", "nests values more than 1000 deep"),
    ],
)
def test_a_hostile_template_is_refused(source, message):
    with pytest.raises(TemplateError, match=message):
        plain(source).render(HELLO)


def test_constants_are_not_worked_out_before_rendering():
    source = "{% if 'a' | center(50000000) | center(60000000) | replace('a', 'b' * 9) %}{% endif %}{{ 7 ** 6000000 }}"
    with pytest.raises(TemplateError, match="was stopped"):
        plain(source).render(HELLO)


def test_info_says_that_a_template_is_stopped():
    with pytest.raises(TemplateError, match="was stopped"):
        _ = plain(STOPPED["loops"]).abilities


def test_long_sources_are_not_compiled():
    with pytest.raises(TemplateError, match=f"has {MAX_SOURCE + 1} characters, must have at most {MAX_SOURCE}"):
        plain("x" * (MAX_SOURCE + 1)).render(HELLO)
    assert plain("x" * MAX_SOURCE).render(HELLO) == "x" * MAX_SOURCE


@pytest.mark.parametrize("source", ["{{ raise_exception('a' * 10000000) }}", "{{ {}['a' * 10000000].x }}"])
def test_messages_of_a_template_are_cut(source):
    with pytest.raises(TemplateError) as raised:
        plain(source).render(HELLO)
    assert len(str(raised.value)) < MAX_MESSAGE + 100


def test_a_slow_machine_ends_at_the_deadline(monkeypatch):
    """The time limit, with a clock that simulates a very slow machine."""
    monkeypatch.setattr(budget, "SECONDS", 60.0)
    seconds = iter(range(0, 1000, 50))
    monkeypatch.setattr(budget.time, "monotonic", lambda: next(seconds))
    with pytest.raises(TemplateError, match="takes more than 60 seconds"):
        plain(MANY + "{% endfor %}").render(HELLO)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1 ** 100000 }} {{ 2.5 * 2 }} {{ 7 % 4 }} {{ 7 - 4 }}", "1024 0.5 1 5.0 3 3"),
        ("{{ 'ab' * 2 }}{{ [1] * 2 }}{{ [1] + [2] }}{{ (1,) + (2,) }}", "abab[1, 1][1, 2](1, 2)"),
        ("{{ '%5d|%-3s|%(a)s%%' % {'a': 1} if false else '%5d|%-3s|%.2f|%c%%' % (5, 'a', 0.5, 'x') }}", "    5|a  |0.50|x%"),
        ("{{ '%s' % messages[0].content }}{{ '%(a)s' % {'a': 1} }}{{ '%*d' % (3, 5) }}", "hi1  5"),
        ("{{ '{0:>5}|{a!r}|{0[0]}'.format('x', a='y') }}{{ '{a}'.format_map({'a': 1}) }}", "    x|'y'|x1"),
        ("{{ ('{}&'|escape).format('<') }}", "&lt;&amp;"),
        ("{{ 'a,b c'.split(',') }}{{ ' a b '.split() }}{{ 'a b c'.split(none, 1) }}", "['a', 'b c']['a', 'b']['a', 'b c']"),
        ("{{ 'a'.center(3) }}{{ '-'.join(['a', 'b']) }}{{ 'aXb'.replace('X', '') }}{{ 'xax'.strip('x') }}", " a a-baba"),
        ("{{ 'a\nb' | indent(2) }}{{ 'ab' | list }}{{ [[1], [2]] | sum(start=[]) }}", "a\n  b['a', 'b'][1, 2]"),
        ("{{ [1, 2] | map('string') | join('-') }}{{ [1, 2, 3] | select('odd') | sum }}{{ [2, 1] | sort }}", "1-24[1, 2]"),
        ("{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ loop.length }}{{ x }}{% endfor %}", "122223"),
        ("{% for x in [1, 2] | map('string') %}{{ loop.last }}{{ x }}{% endfor %}", "False1True2"),
        ("{% for x in [1, [2]] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}", "12"),
        ("{% macro m(a) %}{{ a }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(2) %}x{% endcall %}", "12x"),
        ("{{ messages | map(attribute='role') | list }}{{ 1 in [1] }}{{ 'h' in messages[0].content }}", "['user']TrueTrue"),
        ("{{ {'a': {'b': 1}}['a'] }}{{ {'b': 1}.items() | list }}{{ {(1, 2): 3}[(1, 2)] }}", "{'b': 1}[('b', 1)]3"),
        (
            "{{ (10 ** 40) | trim }}{{ [10 ** 40] | join }}{{ 123456789012 | center(2) }}",
            "1" + "0" * 40 + "1" + "0" * 40 + "123456789012",
        ),
        ("{{ messages[0] | tojson(indent=1) }}", json.dumps(HELLO[0], indent=1)),
        ("{{ 'a' ~ 1 ~ none ~ [1] }}{{ 5 | round(1) }}{{ '11' | int(base=2) }}{{ 1 | string }}", "a1None[1]531"),
        (
            "{% autoescape true %}{{ '<' }}{{ '<' ~ '>' }}{{ messages[0].role ~ '>' }}{% endautoescape %}",
            "&lt;&lt;&gt;user&gt;",
        ),
        ("{% set x %}a{% endset %}{{ x }}{% filter upper %}b{% endfilter %}{{ 'a b' | title | wordcount }}", "aB2"),
        (
            "{{ 'x' if [] | map('string') }}{{ ([1] | map('string')) is sequence }}{{ (['a'] | map('upper')) | first }}",
            "xFalseA",
        ),
        ("{{ messages[0].nothing is defined }}{{ messages[0].items is defined }}{{ messages[0]['role'] }}", "FalseTrueuser"),
    ],
)
def test_ordinary_templates_are_the_same(source, text):
    assert plain(source).render(HELLO) == text
    reference = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    if "tojson" not in source:
        assert reference.from_string(source).render(messages=HELLO) == text


def test_long_chains_of_lazy_filters_need_no_stack():
    source = NS + MANY + "{% set ns.g = ns.g | map('string') %}{% endfor %}{{ ns.g | list }}"
    assert plain(source).render(HELLO) == "['1']"


def test_a_long_conversation_renders():
    """A million tokens in 2,000 messages, with tools; and one message of five million characters."""
    template = plain((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"))
    words = "The quick brown fox jumps over the lazy dog. " * 55
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "fox", "pages": [1, 2, 3]}}}
    turn = [
        {"role": "user", "content": words},
        {"role": "assistant", "content": words, "reasoning_content": "so", "tool_calls": [call]},
        {"role": "tool", "content": words},
    ]
    properties = {f"p{i}": {"type": "string", "description": "x" * 80} for i in range(12)}
    function = {"name": "search", "parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": function}] * 20
    text = template.render(turn * 667, tools=tools)
    assert text.count(words.strip()) == 2001
    assert text.count("<function=search>") == 667
    assert template.render([{"role": "user", "content": words * 2000}]).count("fox") == 110_000


def test_what_large_conversations_may_cost_grows_with_them():
    source = "{% for m in messages %}" + "{% for i in range(4) %}{{ m.content ~ i }}{% endfor %}" * 8 + "{% endfor %}"
    long = [{"role": "user", "content": "x" * 1_000_000}] * 9
    assert len(plain(source).render(long)) == 9 * 32 * 1_000_001
    one = "{% set c = 'x' * 1000000 %}{% for m in messages * 9 %}" + "{% for i in range(4) %}{{ c ~ i }}{% endfor %}" * 8
    with pytest.raises(TemplateError, match="makes more text"):
        plain(one + "{% endfor %}").render(HELLO)


def test_every_filter_is_looked_at():
    """A filter added by a new version of Jinja must be reviewed before templates may use it."""
    measured_by_their_arguments = {
        *("capitalize", "e", "escape", "forceescape", "int", "items", "lower", "map", "reject", "rejectattr", "reverse"),
        *("dictsort", "groupby", "max", "min", "select", "selectattr", "sort", "string", "truncate", "unique", "upper"),
    }
    filters = environment().filters
    assert filters.keys() - COSTS.keys() == CHEAP_FILTERS | measured_by_their_arguments
