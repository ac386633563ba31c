"""Events of a Messages stream, put together as a client does."""

import json


def fold(events):
    """Return the message of a whole stream; asserts the order of its events."""
    events = [event for event in events if event["type"] != "ping"]
    message = dict(events[0]["message"])
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    usage = {**message["usage"], **events[-2]["usage"]}
    return {**message, **events[-2]["delta"], "content": fold_blocks(events[1:-2]), "usage": usage}


def fold_blocks(events):
    """Return the content blocks; asserts that each is opened, written and closed before the next one."""
    blocks, written, is_open = [], [], False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            blocks.append(dict(event["content_block"]))
            written, is_open = [], True
        assert is_open
        assert event["index"] == len(blocks) - 1
        if event["type"] == "content_block_delta":
            _add(blocks[-1], event["delta"], written)
        if event["type"] == "content_block_stop":
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = _input("".join(written))
    assert not is_open
    return blocks


def _add(block, delta, written):
    kind = delta["type"]
    if kind == "input_json_delta":
        written.append(delta["partial_json"])
    elif kind == "signature_delta":
        assert block["signature"] == ""
        block["signature"] = delta["signature"]
    else:
        name = kind.removesuffix("_delta")
        assert block["type"] == name
        assert block.get("signature", "") == "", "the signature is the last delta"
        block[name] += delta[name]


def _input(text):
    """Return the input of a call as Claude Code puts it into its next request."""
    try:
        return json.loads(text)
    except ValueError:
        return {"__unparsedToolInput": {"raw": text, "len": len(text)}}
