"""Listening sockets, opened before the model is loaded."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from dflash.errors import RequestError

BACKLOG = 2048
"""Connections that wait in the kernel until the server accepts them, as in uvicorn."""

_UNUSABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of one address of a name, such as the IPv6 one of localhost on a machine without IPv6; the others are enough."""


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Open the sockets of a server, one for each address of the host; they are closed at the end.

    port: port, 0 to 65535; 0 chooses a free one, the same for all addresses.
    """
    with ExitStack() as stack:
        opened: list[socket.socket] = []
        unusable: list[OSError] = []
        try:
            for family, address in _addresses(host, port):
                if opened and port == 0:
                    address = (address[0], opened[0].getsockname()[1], *address[2:])
                try:
                    opened.append(stack.enter_context(_open(family, address)))
                except OSError as error:
                    if error.errno not in _UNUSABLE:
                        raise
                    unusable.append(error)
            if not opened:
                raise unusable[0]
        except OSError as error:
            raise RequestError(f"--host {host} --port {port}: can't listen there: {error.strerror}") from error
        yield opened


def url_of(sockets: list[socket.socket]) -> str:
    """Return the URL under which this machine reaches the first socket."""
    host, port = sockets[0].getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _addresses(host: str, port: int) -> list[tuple[int, tuple]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _open(family: int, address: tuple) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(AttributeError):  # without it, "::" would also take IPv4, which may have a socket of its own
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened
