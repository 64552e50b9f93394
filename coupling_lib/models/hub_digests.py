"""Whether a file of the hub's cache is the one that the hub announced.

`huggingface_hub` compares sizes, and calls each large file by the SHA-256 that was announced. Here its content is
compared with that name before it is used: what was altered on the way, or on the disk since, is never loaded. For a
large file a note in the user's cache folder says that it was done.
"""

import contextlib
import hashlib
import re
import time
from pathlib import Path

from coupling_lib import paths
from coupling_lib.errors import ModelUnavailableError
from coupling_lib.models.packages import sha256

# A file that takes less time is read anew each time.
_SECONDS = 0.5


def check(file: Path, repo_id: str) -> None:
    """Refuse a file whose content has another SHA-256 than the hub announced, and remove it."""
    # Small files, which are announced by another digest, have the name of that; and where a system knows no links,
    # the cache does not keep the names.
    blob = file.resolve()
    if not re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return
    state = blob.stat()
    what = f"{blob} {state.st_size} {state.st_mtime_ns}"
    note = paths.CACHE / "intact" / hashlib.sha256(what.encode()).hexdigest()[:32]
    if note.exists():
        return
    start = time.monotonic()
    if (seen := sha256(blob)) == blob.name:
        if time.monotonic() - start >= _SECONDS:
            with contextlib.suppress(OSError):
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()
        return
    message = f"{file.name} of {repo_id!r} has the SHA-256 {seen[:12]}, and the hub announced {blob.name[:12]}"
    try:
        # Another process may have removed it, and fetched it anew.
        if (now := blob.stat()).st_ino == state.st_ino and now.st_mtime_ns == state.st_mtime_ns:
            file.unlink(missing_ok=True)
            blob.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    except OSError:
        raise ModelUnavailableError(f"{message}; delete {blob}, and run the same again to fetch it anew") from None
    raise ModelUnavailableError(f"{message}; it was removed, run the same again to fetch it anew")
