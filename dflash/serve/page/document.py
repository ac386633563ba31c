"""The page as one HTML document without external parts."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

SCRIPTS = ("dom", "markdown", "transport", "strip", "completion", "settings", "conversation", "main")
"""Names of the JavaScript files in the order in which they run."""


async def page(_: Request) -> Response:
    """Answer ``/`` with the page. It holds nothing secret: its requests carry the API key that the user enters."""
    content, policy = document()
    return HTMLResponse(
        content,
        headers={
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


@cache
def document() -> tuple[str, str]:
    """Return the HTML with its style sheet and scripts inside, and its Content-Security-Policy.

    Notes
    -----
    The policy allows the one script and the one style sheet by their hashes, and requests to this server. It refuses
    everything else, and HTML from strings (Trusted Types).
    """
    style, script = _text("style.css"), "".join(_text(f"{name}.js") for name in SCRIPTS)
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


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
