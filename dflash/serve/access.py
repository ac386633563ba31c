"""Access control: the API key, and the ``Host`` header of a request."""

import hmac
import ipaddress
import os
from collections.abc import Collection
from pathlib import Path

from starlette.requests import Request

from dflash.errors import RequestError
from dflash.serve.http_errors import Problem
from dflash.serve.limits import MAX_HEADERS

KEY = "DFLASH_API_KEY"
"""Environment variable that holds the key."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def read_key(option: str | None, file: str | None) -> str | None:
    """Find the API keys: an option, a file with a key in each line, or the environment variable `KEY`.

    Parameters
    ----------
    option, file : str, optional
        Values of ``--api-key`` and ``--api-key-file``.

    Returns
    -------
    str or None
        The key, or several with commas between them; None if the server has none.

    Raises
    ------
    RequestError
        If the key is empty (an unset shell variable would open the server), both options are given, or the file can't be
        read.
    """
    if option is not None and file is not None:
        raise RequestError("--api-key and --api-key-file: give one of them")
    source, key = "--api-key", option
    if file is not None:
        source = f"--api-key-file {file}"
        try:
            key = ",".join(line.strip() for line in Path(file).read_text().splitlines() if line.strip())
        except (OSError, ValueError) as error:
            raise RequestError(f"{source}: can't be read: {error}") from error
    elif option is None:
        source, key = KEY, os.environ.get(KEY)
    if key is not None and not key.replace(",", " ").strip():
        raise RequestError(f"{source}: the key is empty; give a key, or drop the option for a server without one")
    return key


def check_key(request: Request, key: str | None) -> None:
    """Refuse a request that carries no key of a list, neither as ``Authorization: Bearer KEY`` nor as ``x-api-key: KEY``.

    Parameters
    ----------
    key : str, optional
        Keys of the server with commas between them; None accepts every request.

    Raises
    ------
    Problem
        401, if the server has a key and the request carries another or none.
    """
    if key is None:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    given = [request.headers.get("x-api-key", ""), token if scheme.lower() == "bearer" else ""]
    keys = [each.strip().encode() for each in key.split(",") if each.strip()]
    if not any(hmac.compare_digest(each.strip().encode(), known) for each in given for known in keys):
        raise Problem(401, "the API key is missing or wrong", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def local_hosts(host: str, key: str | None) -> frozenset[str] | None:
    """Return the values of ``Host`` that requests may have; None if any.

    Parameters
    ----------
    host : str
        Address that the server listens on.
    key : str, optional
        API key; with a key any ``Host`` is accepted.

    Notes
    -----
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

    Raises
    ------
    Problem
        431 for more than `MAX_HEADERS` headers; 403 if ``Host`` is another one.
    """
    n = len(request.headers.raw)
    if n > MAX_HEADERS:
        raise Problem(431, f"the request has {n} headers, at most {MAX_HEADERS} are allowed")
    if hosts is None:
        return
    named = request.headers.get("host", "").lower()
    name = named[1:].partition("]")[0] if named.startswith("[") else named.partition(":")[0]
    if name not in hosts:
        raise Problem(403, f"Host is {named[:80]!r}: without an API key this server accepts only localhost")
