"""Access control: the API key, and the ``Host`` header of a request."""

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from starlette.requests import Request

from dflash.errors import RequestError
from dflash.serve.http_errors import Problem
from dflash.serve.limits import HEADER_BYTES, MAX_HEADERS

KEY = "DFLASH_API_KEY"
"""Environment variable that holds the key."""

_HOST = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::[0-9]*)?")
_BESIDE_HEADER = len(b": \r\n")

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def read_key(option: str | None, file: str | None) -> str | None:
    """Find the API keys: an option, a file with a key in each line, or the environment variable `KEY`.

    Returns: the key, or several with commas between them; None if the server has none.
    """
    if option is not None and file is not None:
        raise RequestError("--api-key and --api-key-file: give one of them")
    source, key = "--api-key", option
    if file is not None:
        source = f"--api-key-file {file}"
        try:
            key = ",".join(line.strip() for line in Path(file).read_text().splitlines() if line.strip())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RequestError(f"{source}: can't be read: {reason}") from error
    elif option is None:
        source, key = KEY, os.environ.get(KEY)
    if key is not None and not key.replace(",", " ").strip():
        raise RequestError(f"{source}: the key is empty; give a key, or drop the option for a server without one")
    return key


def check_key(headers: Mapping[str, str], key: str | None) -> str:
    """Refuse a request that carries no key of a list, neither as ``Authorization: Bearer KEY`` nor as ``x-api-key: KEY``.

    key: keys of the server with commas between them; None accepts every request.
    Returns: name of the user: a hash of the key, empty for a server without keys. Users share no stored responses, and no
        states of the prefix cache unless they ask for that with one ``cache_salt``.
    Raises Problem: 401, if the server has a key and the request carries another or none.
    """
    if key is None:
        return ""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = [headers.get("x-api-key", ""), token if scheme.lower() == "bearer" else ""]
    keys = [each.strip().encode() for each in key.split(",") if each.strip()]
    found = [known for each in given for known in keys if hmac.compare_digest(each.strip().encode(), known)]
    if not found:
        raise Problem(401, "the API key is missing or wrong", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    return hashlib.sha256(found[0]).hexdigest()


def local_hosts(host: str, key: str | None) -> frozenset[str] | None:
    """Return the values of ``Host`` that requests may have; None if any.

    A server on a loopback address without a key is only for this machine. A web page can reach it by pointing its own domain
    to 127.0.0.1 (DNS rebinding); such requests carry the domain in ``Host`` and are refused.
    """
    if key is not None or not is_loopback(host):
        return None
    return frozenset((*_LOOPBACK, host.lower()))


def is_loopback(host: str) -> bool:
    """Return True if an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_head(request: Request, hosts: Collection[str] | None) -> None:
    """Refuse a request with too many headers, or whose ``Host`` is not in `hosts`.

    Raises Problem: 431 for more than `MAX_HEADERS` headers or `HEADER_BYTES` bytes; 403 if ``Host`` is another one.
    """
    raw, scope = request.headers.raw, request.scope
    if len(raw) > MAX_HEADERS:
        raise Problem(431, f"the request has {len(raw)} headers, at most {MAX_HEADERS} are allowed")
    n_bytes = sum(len(name) + len(value) + _BESIDE_HEADER for name, value in raw)
    n_bytes += len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    if n_bytes > HEADER_BYTES:  # h11 checks only what arrives in several pieces
        raise Problem(431, f"the request line and the headers take {n_bytes} bytes, at most {HEADER_BYTES} are allowed")
    if hosts is None:
        return
    named = request.headers.get("host", "").lower()
    matched = _HOST.fullmatch(named)
    if matched is None or (matched["ipv6"] or matched["name"]) not in hosts:
        raise Problem(403, f"Host is {named[:80]!r}: without an API key this server accepts only localhost")
