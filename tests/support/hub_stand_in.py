"""The part of the Hugging Face hub's HTTP API that a download needs, on a thread of this machine."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote

_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
_TREE = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")


class Hub:
    """Repositories and what went over the wire.

    Attributes
    ----------
    repos : dict
        Repository name to a dict of file name to bytes: its branch main.
    revisions : dict
        Repository name and another branch or tag to a dict of file name to bytes.
    requests : list of (method, path, range header)
        In order of arrival.
    cut_after : int or None
        Break the connection of the next download after so many bytes.
    status_after_cut : int or None
        What `status` is from then on.
    status : int or None
        Answer everything with this status.
    gated : set of str
        Repositories whose files need a log-in.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.revisions: dict[tuple[str, str], dict[str, bytes]] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.cut_after: int | None = None
        self.status_after_cut: int | None = None
        self.status: int | None = None
        self.gated: set[str] = set()
        self.url = self.files_url = ""

    def downloads(self) -> list[tuple[str, str | None]]:
        """File and range of each download so far."""
        return [
            (path.rpartition("/")[2], span) for method, path, span in self.requests if (method, path[:5]) == ("GET", "/cdn/")
        ]

    def commit(self, repo: str, revision: str = "main") -> str:
        return _commit(self.files(repo, revision) or {})

    def files(self, repo: str, revision: str) -> dict[str, bytes] | None:
        """Files of a branch, tag or commit; None if there is no such one."""
        if revision == "main":
            return self.repos[repo]
        others = [files for (name, _), files in self.revisions.items() if name == repo]
        commits = {_commit(files): files for files in (self.repos[repo], *others)}
        return commits.get(revision, self.revisions.get((repo, revision)))


def _commit(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status is not None:
            return self.answer(hub.status)
        if path.startswith("/cdn/"):
            repo, commit, file = path.removeprefix("/cdn/").split("//")
            return self.download(hub.files(repo, commit)[file])
        for pattern, reply in ((_TREE, self.tree), (_INFO, self.info), (_RESOLVE, self.resolve)):
            if match := pattern.fullmatch(path):
                if match["repo"] not in hub.repos:
                    return self.answer(404, {"X-Error-Code": "RepoNotFound"})
                parts = match.groupdict()
                parts["revision"] = unquote(parts["revision"] or "main")
                files = hub.files(parts["repo"], parts["revision"])
                if files is None:
                    return self.answer(404, {"X-Error-Code": "RevisionNotFound"})
                return reply(**parts, files=files)
        return self.answer(404)

    def info(self, repo: str, files: dict[str, bytes], **_: object) -> None:
        siblings = [{"rfilename": file} for file in files]
        self.answer_json({"id": repo, "modelId": repo, "sha": _commit(files), "siblings": siblings})

    def tree(self, files: dict[str, bytes], **_: object) -> None:
        sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        sizes = {file: len(content) for file, content in files.items()}
        self.answer_json(
            [
                {
                    "type": "file",
                    "oid": sums[file][:40],
                    "size": sizes[file],
                    "path": file,
                    "lfs": {"oid": sums[file], "size": sizes[file], "pointerSize": 130},
                }
                for file in sums
            ]
        )

    def resolve(self, repo: str, file: str, files: dict[str, bytes], **_: object) -> None:
        if repo in self.hub.gated:
            return self.answer(403, {"X-Error-Code": "GatedRepo"})
        content = files.get(file)
        if content is None:
            return self.answer(404, {"X-Error-Code": "EntryNotFound"})
        headers = {
            "Location": f"{self.hub.files_url}/cdn/{repo}//{_commit(files)}//{file}",
            "X-Repo-Commit": _commit(files),
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
        }
        return self.answer(302, headers)

    def download(self, content: bytes) -> None:
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(span[1]) if span else 0
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        if span:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut, self.hub.cut_after = self.hub.cut_after, None
        if cut is None or self.command == "HEAD":
            return self.answer(206 if span else 200, headers, content[start:])
        self.hub.status = self.hub.status_after_cut
        self.close_connection = True
        return self.answer(206 if span else 200, headers, content[start:], sent=cut)

    def answer_json(self, content: object) -> None:
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"", sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Run a hub on a free port of this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    hub.files_url = f"http://localhost:{server.server_port}"  # a host of its own, as the real hub has for files
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
