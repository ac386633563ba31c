"""Grammars of requests: JSON schemas, regular expressions, Lark and tool calls, matched by `llguidance`."""
