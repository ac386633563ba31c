"""Requests of the same meaning in three APIs, and an engine that notes what they become."""

import json

from serve_fakes import ScriptedEngine

from dflash.errors import QueueFull

CHAT, RESPONSES, MESSAGES = PATHS = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "number"}}, "required": ["path"]}
TOOLS = {
    CHAT: [{"type": "function", "function": {"name": "ls", "parameters": SCHEMA}}],
    RESPONSES: [{"type": "function", "name": "ls", "parameters": SCHEMA}],
    MESSAGES: [{"name": "ls", "input_schema": SCHEMA}],
}
USER = {"role": "user", "content": "List the files."}
CALL = "</think>\n\n<tool_call>\n<function=ls>\n<parameter=path>\nsrc"
END = "\n</parameter>\n<parameter=n>\n1000.0\n</parameter>\n</function>\n</tool_call>"


def body_of(path, messages=(USER,), **fields):
    """A body of any API; thinking is on, as the model does by default."""
    if path == RESPONSES:
        return {"input": list(messages), **fields}
    if path == MESSAGES:
        return {"messages": list(messages), "max_tokens": 100, "thinking": {"type": "adaptive"}, **fields}
    return {"messages": list(messages), **fields}


class Noting(ScriptedEngine):
    """Notes the prompts; with a full queue it takes none."""

    def __init__(self, tokenizer, script, *, full=False):
        super().__init__(tokenizer, script)
        self.prompts, self.grammars, self.conversations, self.full = [], [], [], full

    def add_all(self, sessions):
        if self.full:
            raise QueueFull("the queue is full; try again later")
        self.prompts += [self.tokenizer.decode(session.prompt_ids) for session in sessions]
        self.conversations += [session.conversation for session in sessions]
        self.grammars += [session.grammar is not None for session in sessions]
        super().add_all(sessions)


def events_of(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def called(path, name, result="a.py", **more):
    """A past call and its result."""
    if path == RESPONSES:
        call = {"type": "function_call", "call_id": "1", "name": name, "arguments": '{"path": "src"}'}
        return [call, {"type": "function_call_output", "call_id": "1", "output": result}]
    if path == MESSAGES:
        call = {"type": "tool_use", "id": "1", "name": name, "input": {"path": "src"}}
        answer = {"type": "tool_result", "tool_use_id": "1", "content": result, **more}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": '{"path": "src"}'}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": result}]
