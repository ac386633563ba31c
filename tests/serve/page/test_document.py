"""The page without a browser: one small file, nothing external, a policy that refuses everything else."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from in_process import sent

MAX_BYTES = 120_000


class Document(HTMLParser):
    """Elements of a page, and the text of its style sheet and script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.inside, self.open = [], {"style": "", "script": ""}, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open = tag

    def handle_endtag(self, tag):
        self.open = ""

    def handle_data(self, data):
        if self.open in self.inside:
            self.inside[self.open] += data


@pytest.fixture
def get(app_of):
    """Sends GET requests to a server that has an API key and accepts one host."""
    app = app_of(api_key="secret", hosts={"app"})
    return lambda path, **headers: sent(app, "GET", path, headers=headers)


def test_the_page_needs_no_key_but_the_right_host(get):
    answer = get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert get("/v1/strategies").status_code == 401
    assert get("/", Host="elsewhere").status_code == 403


def test_the_page_is_one_small_file(get):
    answer = get("/")
    assert len(answer.content) < MAX_BYTES
    external = re.findall(r"https?://[\w.]+|@import|\burl\(", answer.text)
    assert set(external) <= {"http://www.w3.org"}  # the name of SVG, which is never fetched
    elements = Document(answer.text).elements
    links = [value for _, attributes in elements for name, value in attributes.items() if name in ("src", "href", "action")]
    assert links == ["data:,", "#prompt"]


def test_no_script_makes_html_from_text(get):
    script = Document(get("/").text).inside["script"]
    assert "createElement" in script
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)


def test_the_policy_allows_the_script_the_style_and_this_server_only(get):
    answer = get("/")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    parts = Document(answer.text).inside
    for name, text in parts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert policy.pop("connect-src") == "'self'"
    assert policy.pop("img-src") == "data:"
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert set(policy) == {"default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types"}
    assert set(policy.values()) == {"'none'"}


def test_every_control_has_a_label(get):
    elements = Document(get("/").text).elements
    labelled = {attributes.get("for") for tag, attributes in elements if tag == "label"}
    within, controls = {"origins", "compare", "default-recover"}, {"input", "select", "textarea"}
    for tag, attributes in elements:
        assert tag not in controls or "aria-label" in attributes or attributes["id"] in labelled | within


def test_no_element_has_a_handler_or_a_style_of_its_own(get):
    for _, attributes in Document(get("/").text).elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
