"""A Hugging Face hub on the loopback interface: one folder, served under one id, in health and in sickness.

It speaks the part of the hub's file protocol that `huggingface_hub` uses to fetch single files:
`HEAD` and `GET` of `/<id>/resolve/<revision>/<file>`, with the commit, an entity tag, ranges, and the error
codes in the `X-Error-Code` header. It keeps a list of what was asked for.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPO_ID = "meta-llama/Meta-Llama-3-8B"
TOKEN = "hf_the_right_one"
REFUSALS = {"401": (401, None), "403": (403, "GatedRepo"), "404": (404, "RepoNotFound"), "500": (500, None)}
LIMITS = {"429": None, "429-second": "1", "429-hour": "3600"}
SPOILT = ("truncated", "no-ranges", "short", "other-size", "altered", "slow", "half")
MODES = ("ok", *REFUSALS, *LIMITS, *SPOILT, "silent", "stalled", "not-a-hub", "gated")


class Hub:
    """A running server; use it as a context manager.

    Args:
        revisions: folder of each revision, e.g. `{"main": ..., "step128": ...}`.
        mode: "ok", an HTTP status, or one of
            "truncated": the weights break off half-way, and again when they are resumed;
            "no-ranges": likewise, and each resumption starts from the first byte;
            "short": the weights are half of what they should be, and announced so;
            "other-size": likewise, and announced whole;
            "altered": one bit of the weights is not what their entity tag says;
            "slow": the weights come in pieces, with pauses;
            "silent": a request is accepted and never answered;
            "stalled": likewise, from the first request for the weights on;
            "half": half of the weights come, and then nothing;
            "429": too many requests, "429-second" and "429-hour" say when to come back;
            "gated": whoever has no token is refused with 401, whoever has another than `TOKEN` with 403;
            "not-a-hub": every request is answered with a page, as by a login portal.
            With a number, as in "truncated:1", so many requests for each file are answered so, and the later ones well;
            of limits, so many of each kind of request for the repository.
        also: further ids under which the same folders are served, each in a mode of its own.
    """

    def __init__(self, revisions: dict[str, Path], mode: str = "ok", also: dict[str, str] | None = None):
        self.revisions, self.modes = revisions, {REPO_ID: mode, **(also or {})}
        if unknown := {value.partition(":")[0] for value in self.modes.values()}.difference(MODES):
            raise ValueError(unknown)
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        self._answered: Counter[str] = Counter()
        self._lock = threading.Lock()
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

    def mode(self, repo_id: str, request: str) -> str:
        """How a request is answered: a mode that is meant for the first few is over after so many."""
        mode, _, times = self.modes.get(repo_id, "404").partition(":")
        with self._lock:
            # Limits are on the requests for a repository, whatever the file.
            counted = f"{request.split(' ')[0]} {repo_id}" if mode in LIMITS else request
            self._answered[counted] += 1
            return "ok" if times and self._answered[counted] > int(times) else mode

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
            hub.tokens.append(token := self.headers.get("Authorization"))
            weights = path.endswith(".safetensors")
            repo_id = "/".join(path.split("/")[1:3])
            self.mode = hub.mode(repo_id, f"{self.command} {path}")
            if self.mode == "silent" or (self.mode == "stalled" and weights):
                return self.hang()
            if self.mode == "not-a-hub":
                return self.send(200, b"<html>Please log in</html>", body=body)
            if self.mode in REFUSALS:
                return self.refuse(*REFUSALS[self.mode])
            if self.mode in LIMITS:
                return self.refuse(429, None, LIMITS[self.mode])
            if self.mode == "gated" and token != f"Bearer {TOKEN}":
                return self.refuse(403 if token else 401, "GatedRepo")
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

        def hang(self) -> None:
            hub.released.wait()
            self.close_connection = True

        def refuse(self, status: int, code: str | None, retry_after: str | None = None) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", code)
            if retry_after:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send(self, status: int, content: bytes, *, body: bool, commit: str = "", weights: bool = False) -> None:
            tag = hashlib.sha256(content).hexdigest()
            how = self.mode if weights else "ok"
            if how == "short" or (how == "other-size" and body):
                content = content[: len(content) // 2]
            if how == "altered":
                content = content[:-1] + bytes([content[-1] ^ 1])
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
            if how in ("truncated", "no-ranges", "half"):
                # Less than was announced, then the connection is closed, or kept.
                self.wfile.write(content[start : max(start, size // 2)])
                self.close_connection = True
                return hub.released.wait() if how == "half" else None
            step = size // 4 if how == "slow" else size
            for at in range(start, size, step or 1):
                time.sleep(0.2 if how == "slow" else 0)
                self.wfile.write(content[at : at + step])

    return Handler
