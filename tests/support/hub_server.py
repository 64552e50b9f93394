"""A Hugging Face hub on the loopback interface: folders, served under ids, in health and in sickness.

It speaks the part of the hub's protocol with which `huggingface_hub` takes a snapshot: what a repository holds at a
revision, and `HEAD` and `GET` of its files, with the error codes in the `X-Error-Code` header. It keeps a list of what
was asked for.
"""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPO_ID = "meta-llama/Meta-Llama-3-8B"
TOKEN = "hf_the_right_one"
REFUSALS = {
    "401": (401, None), "403": (403, "GatedRepo"), "404": (404, "RepoNotFound"), "429": (429, None), "500": (500, None),
}  # fmt: skip
MODES = ("ok", *REFUSALS, "gated", "silent", "not-a-hub")


class Hub:
    """A running server; use it as a context manager.

    Args:
        revisions: folder of each revision, e.g. `{"main": ..., "step128": ...}`.
        mode: "ok", an HTTP status, or one of
            "gated": whoever has no token is refused with 401, whoever has another than `TOKEN` with 403;
            "silent": a request is accepted and never answered;
            "not-a-hub": every request is answered with a page, as by a login portal.
        also: further ids under which the same folders are served, each in a mode of its own.
    """

    def __init__(self, revisions: dict[str, Path], mode: str = "ok", also: dict[str, str] | None = None):
        self.revisions, self.modes = revisions, {REPO_ID: mode, **(also or {})}
        if unknown := set(self.modes.values()).difference(MODES):
            raise ValueError(unknown)
        self.requests: list[str] = []
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub, self._server.daemon_threads = self, True

    @property
    def endpoint(self) -> str:
        """Value for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, revision: str) -> str:
        """Commit of a revision: 40 hexadecimal digits."""
        return hashlib.sha1(revision.encode()).hexdigest()

    def found(self, revision: str) -> tuple[str, Path] | None:
        """Commit and folder of a branch, tag or commit."""
        known = ((self.commit(name), name, folder) for name, folder in self.revisions.items())
        return next(((commit, folder) for commit, name, folder in known if revision in (name, commit)), None)

    def fetched(self, repo_id: str) -> list[str]:
        """The files of a repository that were asked for in full, as often as they were."""
        start = f"GET /{repo_id}/resolve/"
        return sorted(line.removeprefix(start).split("/", 1)[1] for line in self.requests if line.startswith(start))

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        path, token, hub = unquote(urlsplit(self.path).path), self.headers.get("Authorization"), self.server.hub
        hub.requests.append(f"{self.command} {path}")
        parts = path.removeprefix("/api/models").split("/")
        repo_id, (what, revision, *rest) = "/".join(parts[1:3]), (*parts[3:], "", "")[: max(2, len(parts) - 3)]
        mode = hub.modes.get(repo_id, "404")
        if mode == "silent":
            hub.released.wait()
            self.close_connection = True
        elif mode == "not-a-hub":
            self.send(200, b"<html>Please log in</html>")
        elif mode == "gated" and token != f"Bearer {TOKEN}":
            self.send(403 if token else 401, code="GatedRepo")
        elif mode in REFUSALS:
            self.send(REFUSALS[mode][0], code=REFUSALS[mode][1])
        elif (found := hub.found(revision or "main")) is None:
            self.send(404, code="RevisionNotFound")
        else:
            self.send_part(repo_id, what, "/".join(rest), *found)

    def do_GET(self) -> None:
        self.do_HEAD()

    def send_part(self, repo_id: str, what: str, name: str, commit: str, folder: Path) -> None:
        files = {f.relative_to(folder).as_posix(): f for f in sorted(folder.rglob("*")) if f.is_file()}
        if what == "tree":
            sizes = {n: {"size": file.stat().st_size, "oid": tag(file)} for n, file in files.items()}
            self.send(200, json.dumps([{"type": "file", "path": n} | size for n, size in sizes.items()]).encode())
        elif what != "resolve":
            info = {"id": repo_id, "sha": commit, "siblings": [{"rfilename": n} for n in files]}
            self.send(200, json.dumps(info).encode())
        elif name not in files:
            self.send(404, code="EntryNotFound")
        else:
            self.send(200, files[name].read_bytes(), commit=commit, etag=tag(files[name]))

    def send(
        self, status: int, content: bytes = b"", code: str | None = None, commit: str = "", etag: str = ""
    ) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code, "X-Repo-Commit": commit, "ETag": etag}
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def tag(file: Path) -> str:
    """By what name a hub announces a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
