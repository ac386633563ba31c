"""Blocks of Anthropic's Messages."""

from dflash.generation.messages.row import ASSISTANT, MESSAGES, RESULT, SYSTEM, USER, as_text, left_out, read, refused

_ALL = (SYSTEM, USER, ASSISTANT, RESULT)
_OUTPUT = (ASSISTANT, RESULT)
_IMAGE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
_PLAIN = {"type": "text", "media_type": "text/plain", "data": "Oslo is a city."}
_NOTE = "a note in brackets, since the model takes text only: the conversation can go on"

ROWS = (
    read("text", MESSAGES, _ALL, "its text", text="a city"),
    read("thinking", MESSAGES, (ASSISTANT,), "reasoning; the chat template decides which turns show it", thinking="a city"),
    left_out("redacted_thinking", MESSAGES, (ASSISTANT,), "it holds no text", data="c2VjcmV0"),
    read("tool_use", MESSAGES, (ASSISTANT,), "a call", id="1", name="city", input={"a": 1}),
    read("tool_result", MESSAGES, (USER,), "a tool's result", tool_use_id="1", content="a city"),
    read("tool_reference", MESSAGES, (RESULT,), "the definition of the deferred tool", tool_name="city"),
    refused("image", MESSAGES, (SYSTEM, USER), "describe the image, or leave it out", source=_IMAGE),
    as_text("image", MESSAGES, _OUTPUT, _NOTE, source=_IMAGE),
    as_text(
        "document",
        MESSAGES,
        _ALL,
        "the text of a `text` or `content` source; others are refused, in results a note",
        source=_PLAIN,
    ),
    as_text(
        "search_result",
        MESSAGES,
        _ALL,
        "title, source and texts",
        title="a city",
        source="https://a.example",
        content=[{"type": "text", "text": "Oslo"}],
    ),
    left_out("container_upload", MESSAGES, (USER, ASSISTANT), "the file is at Anthropic", file_id="f"),
    as_text(
        "server_tool_use", MESSAGES, (ASSISTANT,), "name and input", id="1", name="web_search", input={"query": "a city"}
    ),
    as_text(
        "web_search_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "titles and addresses",
        tool_use_id="1",
        content=[{"type": "web_search_result", "title": "a city", "url": "https://a.example", "encrypted_content": "x"}],
    ),
    as_text(
        "web_fetch_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "address and text",
        tool_use_id="1",
        content={
            "type": "web_fetch_result",
            "url": "https://a.example",
            "content": {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a city"}},
        },
    ),
    as_text(
        "code_execution_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "output, errors and status",
        tool_use_id="1",
        content={"type": "code_execution_result", "stdout": "a city", "stderr": "", "return_code": 0, "content": []},
    ),
    as_text(
        "bash_code_execution_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "output, errors and status",
        tool_use_id="1",
        content={"type": "bash_code_execution_result", "stdout": "a city", "stderr": "", "return_code": 0, "content": []},
    ),
    as_text(
        "text_editor_code_execution_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "the text that it shows",
        tool_use_id="1",
        content={"type": "text_editor_code_execution_view_result", "file_type": "text", "content": "a city"},
    ),
    as_text(
        "tool_search_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "names of the tools",
        tool_use_id="1",
        content={
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "a city"}],
        },
    ),
    as_text(
        "advisor_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "its text",
        tool_use_id="1",
        content={"type": "advisor_result", "text": "a city"},
    ),
    as_text(
        "mcp_tool_use", MESSAGES, (ASSISTANT,), "name and input", id="1", name="find", server_name="s", input={"a": "a city"}
    ),
    as_text(
        "mcp_tool_result",
        MESSAGES,
        (ASSISTANT, USER),
        "its texts",
        tool_use_id="1",
        is_error=False,
        content=[{"type": "text", "text": "a city"}],
    ),
    left_out(
        "mcp_tool_listing", MESSAGES, (ASSISTANT,), "the server's tools can't be called here", mcp_server_name="s", tools=[]
    ),
    left_out("fallback", MESSAGES, (ASSISTANT,), "a mark without content", to={"model": "m"}),
    read(
        "compaction",
        MESSAGES,
        (ASSISTANT, USER),
        "the summary, in place of all before it; without content nothing",
        content="a city",
    ),
    read(
        "tool_addition",
        MESSAGES,
        (SYSTEM, USER),
        "a note that the tool can be called from here on, with its definition if it is deferred",
        tool={"type": "tool_reference", "name": "city"},
    ),
    read(
        "tool_removal",
        MESSAGES,
        (SYSTEM, USER),
        "a note that the tool can't be called any more",
        tool={"type": "tool_reference", "name": "city"},
    ),
)
