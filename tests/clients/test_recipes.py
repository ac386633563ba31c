"""The recipes in the documentation: complete, and of the same settings as the tests that run the programs."""

import json
import re
import tomllib

import pytest
from client_recipes import ADDRESS, CLIENTS, DOCS

PAGES = {page: (DOCS / page).read_text(encoding="utf-8") for page in ("anthropic.md", "responses.md", "clients.md")}
ROWS = re.findall(r"^\| `(\w+)([^`]*)` \| (.*) \|$", PAGES["clients.md"], re.MULTILINE)


def blocks(page, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.program)
def test_every_program_has_a_command_for_scripts(client):
    ((arguments, settings),) = [(arguments, settings) for name, arguments, settings in ROWS if name == client.program]
    for option in re.findall(r"(?<= )-[-a-z]+", f" {client.arguments}"):
        known = option in arguments or option in settings
        assert known or option in (
            "--dangerously-bypass-approvals-and-sandbox",
            "--no-detect-urls",
            "--no-show-release-notes",
        )
    for assignment in re.findall(r"\b[A-Z_]+=\w+", settings):
        name, _, value = assignment.partition("=")
        assert client.quiet[name] == value


def test_the_settings_are_those_of_the_server():
    """Address, model and context; the base has /v1 where the client does not add it."""
    (claude,) = [block for block in blocks("anthropic.md", "sh") if "export" in block]
    variables = dict(re.findall(r"\b([A-Z_]+)=(\S+)", claude))
    assert variables == {
        "ANTHROPIC_BASE_URL": ADDRESS,
        "ANTHROPIC_AUTH_TOKEN": "none",
        **{f"ANTHROPIC{kind}_MODEL": "local" for kind in ("", "_DEFAULT_HAIKU", "_DEFAULT_SONNET", "_DEFAULT_OPUS")},
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "131072",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    (codex,) = map(tomllib.loads, blocks("responses.md", "toml"))
    provider = codex.pop("model_providers")["local"]
    assert provider == {"name": "local", "base_url": f"{ADDRESS}/v1", "env_key": "LOCAL_KEY", "wire_api": "responses"}
    assert codex == {
        "model": "local", "model_provider": "local", "model_context_window": 131072, "web_search": "disabled",
        "features": {"multi_agent": False, "goals": False}, "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
    }  # fmt: skip
    opencode, qwen, pi = map(json.loads, blocks("clients.md", "json"))
    local = opencode["provider"]["local"]
    assert (local["npm"], local["options"]["baseURL"]) == ("@ai-sdk/openai-compatible", f"{ADDRESS}/v1")
    assert local["models"]["local"]["limit"] == {"context": 131072, "output": 16384}
    assert qwen["security"]["auth"]["selectedType"] == "openai"
    (model,) = pi["providers"]["local"]["models"]
    assert (model["contextWindow"], model["compat"]["thinkingFormat"]) == (131072, "qwen-chat-template")
    for text in ("OPENAI_BASE_URL", "COPILOT_PROVIDER_BASE_URL", "OPENAI_API_BASE"):
        assert f"{text}={ADDRESS}/v1 " in PAGES["clients.md"]
    programs = {name for name, _, _ in ROWS}
    assert programs == {client.program for client in CLIENTS} | {"kilo", "mini", "llm"}
