"""The page as one HTML document without external parts."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

STYLES = ("base", "layout", "thread", "markdown", "tokens", "settings")
"""Names of the style sheets in the order in which they apply."""

SCRIPTS = (
    *(f"shell/{name}" for name in ("dom", "theme", "toast", "wording", "transport", "connection", "keys")),
    *(f"markdown/{name}" for name in ("source", "blocks", "inline", "highlight", "view")),
    *(f"tokens/{name}" for name in ("origins", "token_map", "tip", "token_keys", "step_strip", "step_player")),
    *(f"chat/{name}" for name in ("lane", "completion", "attachments", "messages", "store", "settings", "user_view")),
    *(f"chat/{name}" for name in ("measure", "thread", "history", "welcome", "main")),
)
"""Names of the JavaScript files in the order in which they run."""


async def page(_: Request) -> Response:
    """Answer ``/`` with the page. It holds nothing secret: its requests carry the API key that the user enters."""
    return page_response()


def page_response(status: int = 200, **headers: str) -> Response:
    """Return the page. While the model loads, its status is 503, and it waits by itself."""
    content, policy = document()
    return HTMLResponse(
        content,
        status_code=status,
        headers={
            **headers,
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


@cache
def document() -> tuple[str, str]:
    """Return the HTML with its style sheet and scripts inside, and its Content-Security-Policy.

    The policy allows the one script and the one style sheet by their hashes, and requests to this server. It refuses
    everything else, and HTML from strings (Trusted Types).
    """
    style = "".join(_text(f"style/{name}.css") for name in STYLES)
    script = _without_comments("".join(_text(f"{name}.js") for name in SCRIPTS))
    content = _text("index.html").replace("{style}", style).replace("{script}", script)
    policy = (
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return content, "; ".join(policy)


def _without_comments(script: str) -> str:
    """Drop indents and the lines that are comments, a quarter of the bytes. No string of the scripts spans lines."""
    lines = (line.strip() for line in script.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith(("//", "/**")))


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
