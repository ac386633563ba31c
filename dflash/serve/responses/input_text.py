"""Free text of a custom tool, taken out of the JSON arguments while they arrive."""

import json
import re

from dflash.serve.responses.tools import INPUT

_HEAD = re.compile(rf'\s*{{\s*"{INPUT}"\s*:\s*"')
_MAX_HEAD = 64
"""Characters in which the head must be; arguments that begin in another way are looked at once, at the end."""

_HEX, _HIGH = "[0-9a-fA-F]{4}", "[dD][89abAB][0-9a-fA-F]{2}"
_CODE = rf"\\u(?:{_HEX}|(?=[0-9a-fA-F]{{0,3}}[^0-9a-fA-F]))"
_BODY = re.compile(rf'(?:[^"\\]|\\[^u]|\\u{_HIGH}(?=[^\\]|\\[^u]|{_CODE})|(?!\\u{_HIGH}){_CODE})*+')
"""Inside of a JSON string, without an incomplete escape; the first half of a surrogate pair waits for the second."""

_ESCAPES = re.compile(rf"(?:\\u{_HEX})++|\\.", re.DOTALL)


class InputText:
    """Incremental reader of the text in ``{"input": "..."}``.

    The text is passed on as it arrives if it is the first value of the object. In other arguments it is looked for at the
    end. Arguments without it are passed on as they are, since a client can answer those with an error.
    """

    def __init__(self) -> None:
        self._written: list[str] = []
        self._rest = ""
        self._in_text = self._ended = False

    def push(self, arguments: str) -> str:
        """Return the new text in more of the arguments."""
        if not self._in_text:
            self._written.append(arguments)
        if self._ended or (not self._in_text and len(self._rest) > _MAX_HEAD):
            return ""
        self._rest += arguments
        if not self._in_text and (head := _HEAD.match(self._rest, 0, _MAX_HEAD)):
            self._in_text, self._rest = True, self._rest[head.end() :]
        if not self._in_text:
            return ""
        body = _BODY.match(self._rest)
        assert body is not None, "matches everywhere"
        end = body.end()
        self._ended = self._rest.startswith('"', end)
        text, self._rest = _ESCAPES.sub(_decoded, self._rest[:end]), self._rest[end:]
        return text

    def finish(self, *, complete: bool) -> str:
        """Return the text that is left. Called once, after the last arguments; they are `complete` if the call is."""
        if not complete:
            return ""
        if self._in_text:
            return "" if self._ended else self._rest
        arguments = "".join(self._written)
        try:
            value = json.loads(arguments)
        except ValueError:
            return arguments
        text = value.get(INPUT) if isinstance(value, dict) else None
        return text if isinstance(text, str) else arguments


def _decoded(escapes: re.Match[str]) -> str:
    """Decode escapes of a JSON string. Half a surrogate pair becomes U+FFFD; an escape that JSON lacks stays as it is."""
    try:
        text = json.loads(f'"{escapes[0]}"')
    except ValueError:
        return escapes[0]
    return str(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
