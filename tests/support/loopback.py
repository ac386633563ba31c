"""Programs that run with no network but the loopback interface, and a socket there that this process listens on."""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from functools import cache

_UNSHARE = ["unshare", "--net", "--map-root-user"]


@cache
def isolation():
    """Words that run a command in a network namespace of its own; none where that is not permitted."""
    try:
        done = subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return [] if done.returncode else _UNSHARE


@contextmanager
def starting(**settings):
    """Start a process in a network of its own.

    Yields its listening socket, and a function that turns the process into a program: ``become(words, folder, environment)``
    returns the process. What is still running afterwards is killed.
    """
    ours, its = socket.socketpair()
    words = [*isolation(), sys.executable, __file__, str(its.fileno()), *isolation()[:1]]
    child = subprocess.Popen(words, pass_fds=[its.fileno()], start_new_session=True, **settings)
    its.close()

    def become(words, folder, environment):
        ours.sendall(json.dumps([words, str(folder), environment]).encode())
        ours.close()
        return child

    try:
        _, (file,), _, _ = socket.recv_fds(ours, 1, 1)
        with socket.socket(fileno=file) as listener:
            yield listener, become
    finally:
        ours.close()
        if child.poll() is None:
            os.killpg(child.pid, 9)
        child.wait()


def _become(channel, alone):
    if alone:
        _raise_loopback()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.send_fds(channel, [b"x"], [listener.fileno()])
    received = b"".join(iter(lambda: channel.recv(1 << 16), b""))
    channel.close()
    words, folder, environment = json.loads(received)
    os.chdir(folder)
    os.execvpe(words[0], words, environment)


def _raise_loopback():
    """Set the flag ``IFF_UP`` (1) of ``lo`` by ``SIOCSIFFLAGS``; netdevice(7)."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))


if __name__ == "__main__":
    _become(socket.socket(fileno=int(sys.argv[1])), len(sys.argv) > 2)
