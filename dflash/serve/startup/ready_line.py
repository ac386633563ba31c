"""The line that ends the start of the server."""

import json
import shlex


def ready_line(url: str, *, name: str, context: int, strategy: str, has_key: bool, has_template: bool) -> str:
    """Return the line: URL, model, context, strategy, and a command that works as printed.

    has_key: True if requests need a key. It is never printed: the command is then one that needs none.
    """
    if has_key:
        command = f"curl {url}/health"
    else:
        path, body = "completions", {"prompt": "import os", "max_tokens": 32}
        if has_template:
            path, body = "chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}
        command = f"curl {url}/v1/{path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    return f"dflash: {url} serves {name}, context {context}, strategy {strategy}; try: {command}"
