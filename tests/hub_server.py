"""A Hugging Face hub on the loopback interface: one folder, served under one id, in health and in sickness.

It speaks the part of the hub's file protocol that `huggingface_hub` uses to fetch single files:
`HEAD` and `GET` of `/<id>/resolve/<revision>/<file>`, with the commit, an entity tag, ranges, and the error
codes in the `X-Error-Code` header. It keeps a list of what was asked for.
"""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPO_ID = "meta-llama/Meta-Llama-3-8B"
MODES = ("ok", "401", "403", "404", "500", "truncated", "short", "silent", "stalled", "no-ranges", "not-a-hub")


class Hub:
    """A running server; use it as a context manager.

    Args:
        revisions: folder of each revision, e.g. `{"main": ..., "step128": ...}`.
        mode: "ok", an HTTP status, or one of
            "truncated": the weights break off half-way, and again when they are resumed;
            "no-ranges": likewise, and each resumption starts from the first byte;
            "short": the weights are half of what they should be, and announced so;
            "silent": a request is accepted and never answered;
            "stalled": likewise, from the first request for the weights on;
            "not-a-hub": every request is answered with a page, as by a login portal.
        also: further ids under which the same folders are served, each in a mode of its own.
    """

    def __init__(self, revisions: dict[str, Path], mode: str = "ok", also: dict[str, str] | None = None):
        self.revisions, self.modes = revisions, {REPO_ID: mode, **(also or {})}
        if unknown := set(self.modes.values()).difference(MODES):
            raise ValueError(unknown)
        self.requests: list[str] = []
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def endpoint(self) -> str:
        """Value for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, revision: str) -> str:
        """Commit of a revision: 40 hexadecimal digits."""
        return hashlib.sha1(revision.encode()).hexdigest()

    def folder(self, revision: str) -> Path | None:
        """Folder of a branch, tag or commit."""
        return next((f for name, f in self.revisions.items() if revision in (name, self.commit(name))), None)

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            weights = path.endswith(".safetensors")
            repo_id = "/".join(path.split("/")[1:3])
            self.mode = hub.modes.get(repo_id, "404")
            if self.mode == "silent" or (self.mode == "stalled" and weights):
                hub.released.wait()
                self.close_connection = True
                return
            if self.mode == "not-a-hub":
                return self.send(200, b"<html>Please log in</html>", body=body)
            refusal = {"401": (401, None), "403": (403, "GatedRepo"), "404": (404, "RepoNotFound"), "500": (500, None)}
            if self.mode in refusal:
                return self.refuse(*refusal[self.mode])
            prefix = f"/{repo_id}/resolve/"
            if not path.startswith(prefix):
                return self.refuse(404, "RepoNotFound")
            revision, name = path.removeprefix(prefix).split("/", 1)
            folder = hub.folder(revision)
            if folder is None:
                return self.refuse(404, "RevisionNotFound")
            if not (folder / name).is_file():
                return self.refuse(404, "EntryNotFound")
            content = (folder / name).read_bytes()
            commit = next(hub.commit(known) for known in hub.revisions if hub.revisions[known] == folder)
            self.send(200, content, body=body, commit=commit, weights=weights)

        def refuse(self, status: int, code: str | None) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send(self, status: int, content: bytes, *, body: bool, commit: str = "", weights: bool = False) -> None:
            tag = hashlib.sha256(content).hexdigest()
            if weights and self.mode == "short":
                content = content[: len(content) // 2]
            start, size = 0, len(content)
            asked = self.headers.get("Range", "")
            if asked.startswith("bytes=") and self.mode != "no-ranges":
                start = int(asked.removeprefix("bytes=").split("-")[0])
                status = 206
            self.send_response(status)
            if commit:
                self.send_header("X-Repo-Commit", commit)
                self.send_header("ETag", f'"{tag}"')
                self.send_header("Accept-Ranges", "bytes")
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            if not body:
                return
            if weights and self.mode in ("truncated", "no-ranges"):
                # Less than was announced, then the connection is closed.
                self.wfile.write(content[start : max(start, size // 2)])
                self.close_connection = True
                return
            self.wfile.write(content[start:])

    return Handler
