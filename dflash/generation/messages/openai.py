"""Parts of chat messages, and items and parts of Responses."""

from dflash.generation.messages.row import (
    ASSISTANT,
    CHAT,
    ITEM,
    RESPONSES,
    RESULT,
    SYSTEM,
    USER,
    as_text,
    left_out,
    read,
    refused,
)

_ALL = (SYSTEM, USER, ASSISTANT, RESULT)
_INPUT, _OUTPUT = (SYSTEM, USER), (ASSISTANT, RESULT)
_NOTE = "a note in brackets, since the model takes text only: the conversation can go on"
_ONLY = "describe the {}, or leave it out"
_RUNS = "it ran at OpenAI; the answer after it holds what came of it"
_MEDIA = {
    "image_url": ("image", {"image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}),
    "input_audio": ("recording", {"input_audio": {"data": "UklGRg==", "format": "wav"}}),
    "audio_url": ("recording", {"audio_url": {"url": "https://a.example"}}),
    "video_url": ("film", {"video_url": {"url": "https://a.example"}}),
    "file": ("file", {"file": {"file_id": "f"}}),
}
_INPUTS = {
    "input_image": ("image", {"image_url": "data:image/png;base64,iVBORw0KGgo="}),
    "input_audio": ("recording", {"audio_url": "https://a.example"}),
    "input_file": ("file", {"file_id": "f"}),
    "computer_screenshot": ("image", {"image_url": "https://a.example"}),
}

ROWS = (
    *(read(kind, CHAT, _ALL, "its text", text="a city") for kind in ("text", "input_text", "output_text")),
    read("refusal", CHAT, (ASSISTANT,), "its text", refusal="a city"),
    read("thinking", CHAT, (ASSISTANT,), "reasoning", thinking="a city"),
    read("reasoning", CHAT, (ASSISTANT,), "reasoning", text="a city"),
    read("tool_reference", CHAT, (RESULT,), "the definition of the deferred tool", tool_name="city"),
    *(refused(kind, CHAT, _INPUT, _ONLY.format(thing), **example) for kind, (thing, example) in _MEDIA.items()),
    *(as_text(kind, CHAT, _OUTPUT, _NOTE, **example) for kind, (_, example) in _MEDIA.items()),
    # parts of Responses
    *(read(kind, RESPONSES, _ALL, "its text", text="a city") for kind in ("input_text", "output_text", "text")),
    read("refusal", RESPONSES, _ALL, "its text", refusal="a city"),
    *(read(kind, RESPONSES, (ASSISTANT,), "reasoning", text="a city") for kind in ("reasoning_text", "summary_text")),
    *(refused(kind, RESPONSES, _INPUT, _ONLY.format(thing), **example) for kind, (thing, example) in _INPUTS.items()),
    *(as_text(kind, RESPONSES, _OUTPUT, _NOTE, **example) for kind, (_, example) in _INPUTS.items()),
    left_out("encrypted_content", RESPONSES, _ALL, "it holds no text", encrypted_content="x"),
    # items of Responses
    read("message", RESPONSES, (ITEM,), "a message", role="user", content="a city"),
    read("reasoning", RESPONSES, (ITEM,), "reasoning", summary=[{"type": "summary_text", "text": "a city"}]),
    read("function_call", RESPONSES, (ITEM,), "a call", call_id="1", name="city", arguments="{}"),
    read("function_call_output", RESPONSES, (ITEM,), "a tool's result", call_id="1", output="a city"),
    read(
        "custom_tool_call", RESPONSES, (ITEM,), "a call with the text as its parameter", call_id="1", name="city", input="x"
    ),
    read("custom_tool_call_output", RESPONSES, (ITEM,), "a tool's result", call_id="1", output="a city"),
    read(
        "agent_message",
        RESPONSES,
        (ITEM,),
        "a message of the user that names the agent",
        author="/root/a",
        recipient="/root",
        content=[{"type": "input_text", "text": "a city"}],
    ),
    read(
        "local_shell_call",
        RESPONSES,
        (ITEM,),
        "a call of `local_shell`",
        call_id="1",
        action={"type": "exec", "command": ["city"]},
    ),
    read("local_shell_call_output", RESPONSES, (ITEM,), "a tool's result", id="1", output="a city"),
    read("shell_call", RESPONSES, (ITEM,), "a call of `shell`", call_id="1", action={"commands": ["city"]}),
    read(
        "shell_call_output",
        RESPONSES,
        (ITEM,),
        "a tool's result",
        call_id="1",
        output=[{"stdout": "a city", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    ),
    read(
        "apply_patch_call",
        RESPONSES,
        (ITEM,),
        "a call of `apply_patch`",
        call_id="1",
        operation={"type": "delete_file", "path": "city"},
    ),
    read("apply_patch_call_output", RESPONSES, (ITEM,), "a tool's result", call_id="1", output="a city"),
    as_text(
        "mcp_call",
        RESPONSES,
        (ITEM,),
        "name, arguments and output",
        id="1",
        name="find",
        server_label="s",
        arguments="{}",
        output="a city",
    ),
    as_text(
        "file_search_call",
        RESPONSES,
        (ITEM,),
        "what was searched, and the texts found",
        id="1",
        queries=["a city"],
        results=None,
    ),
    as_text(
        "code_interpreter_call", RESPONSES, (ITEM,), "code and output", id="1", code="a city", outputs=None, container_id="c"
    ),
    read("compaction", RESPONSES, (ITEM,), "left out if it holds no text", encrypted_content="x"),
    refused("item_reference", RESPONSES, (ITEM,), "send the item itself, or use previous_response_id", id="msg_1"),
    *(
        left_out(kind, RESPONSES, (ITEM,), why, **example)
        for kind, why, example in (
            ("web_search_call", _RUNS, {"id": "1", "action": {"type": "search", "query": "a city"}}),
            ("computer_call", _RUNS, {"call_id": "1", "action": {"type": "screenshot"}}),
            ("computer_call_output", _RUNS, {"call_id": "1", "output": {"type": "computer_screenshot"}}),
            ("image_generation_call", _RUNS, {"id": "1", "result": "x"}),
            ("tool_search_call", "tools are offered by `tools`", {"arguments": {}}),
            ("tool_search_output", "tools are offered by `tools`", {"tools": []}),
            ("additional_tools", "tools are offered by `tools`", {"role": "developer", "tools": []}),
            ("configuration_update", "a mark for OpenAI's models", {}),
            ("compaction_trigger", "clients compact their conversations themselves", {}),
            ("mcp_list_tools", "the server's tools can't be called here", {"id": "1", "server_label": "s", "tools": []}),
            ("mcp_approval_request", "the server's tools can't be called here", {"id": "1", "name": "a", "arguments": "{}"}),
            (
                "mcp_approval_response",
                "the server's tools can't be called here",
                {"approval_request_id": "1", "approve": True},
            ),
            ("program", _RUNS, {"id": "1"}),
            ("program_output", _RUNS, {"id": "1"}),
        )
    ),
)
