"""A model's files: fetched from the Hugging Face hub into its cache, safetensors only, or the reason why not.

Files are asked for one by one, by name and at one commit, so that what is loaded is one state of the
repository and nothing but configuration, tokenizer and safetensors weights ever lands in the cache. Every
way in which this can fail ends in one line that says what to do.
"""

import errno
import itertools
import json
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import (
    HfFileMetadata,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub import logging as hub_logging
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers, tqdm

from coupling_lib.errors import CouplingError, ModelUnavailableError
from coupling_lib.models import hub_digests, registry

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PICKLED = re.compile(r".*\.(bin|pt|pth|ckpt|h5|msgpack)(\.index\.json)?")
_PICKLED_NAMES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
PROCESSOR = "preprocessor_config.json"
_OLDER_TOKENIZER = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")
TOKENIZER_FILES = (*_TOKENIZER, *_OLDER_TOKENIZER)
# A hub that limits how often it is asked is asked so many times; the pauses, in seconds, double from the first up, or
# are what it asks for. Its limits hold for five minutes; a pause above that is the user's to decide on.
_TRIES, _FIRST_PAUSE, _LONGEST_PAUSE, _WORTH_TELLING = 6, 1.0, 330.0, 5.0


class _TruncatedError(OSError):
    """A server sends a file again and again and never to its end."""


class _Progress(tqdm):
    """The hub's progress bar, which also notices a download that never gets anywhere."""

    # A server that breaks off and cannot resume is asked from the start each time, without limit: every chunk it
    # sends counts as progress.
    restarts = 0

    def update(self, n: float | None = 1) -> bool | None:
        if n is not None and n < 0:
            self.restarts += 1
            if self.restarts > 2:
                raise _TruncatedError("the download broke off three times, each time from the start")
        return super().update(n)


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """Bring a model's configuration and tokenizer, or image processor, into the local cache; return their folder."""
    # Without a network, what the cache holds is used. A server that does not answer is given up after the time-outs
    # of `huggingface_hub` (10 s for an answer), not after its minutes of retries.
    with _explained(repo_id, revision):
        config, online = _found(repo_id, "config.json", revision)
        folder = config.parent
        tokenizer = _get(repo_id, "tokenizer.json", folder.name, online)
        for name in _TOKENIZER[1:] if tokenizer else _TOKENIZER[1:] + _OLDER_TOKENIZER:
            _get(repo_id, name, folder.name, online)
        if "image_size" in config.read_text(encoding="utf-8", errors="replace"):
            _get(repo_id, PROCESSOR, folder.name, online)
        return folder


def fetch_file(repo_id: str, name: str, revision: str | None = None) -> tuple[Path, str]:
    """Bring one file into the local cache and give its place and its commit."""
    with _explained(repo_id, revision):
        file, _ = _found(repo_id, name, revision)
        return file, file.parents[len(Path(name).parts) - 1].name


def fetch_weights(repo_id: str, commit: str) -> None:
    """Bring a model's weights into the folder that `fetch` gave."""
    with _explained(repo_id, commit):
        index = _cached(repo_id, INDEX, commit)
        if index is None and _get(repo_id, WEIGHTS, commit):
            return
        index = _get(repo_id, INDEX, commit)
        if index is None:
            pickled = next((n for n in _PICKLED_NAMES if _exists(repo_id, n, commit)), None)
            raise ModelUnavailableError(_no_safetensors(repo_id, pickled))
        # All are asked for before the first of them, which may be large, is downloaded.
        missing = [shard for shard in shards(index, repo_id) if _cached(repo_id, shard, commit) is None]
        for shard in missing:
            if not _exists(repo_id, shard, commit):
                message = f"{repo_id!r} lacks {shard}, which its {INDEX} names; choose another revision"
                raise ModelUnavailableError(message)
        for shard in shards(index, repo_id):
            _download(repo_id, shard, commit)


def check_weights(folder: Path, name: str) -> None:
    """Refuse a local folder whose weights are missing, incomplete or pickled."""
    if (folder / WEIGHTS).is_file():
        return
    if (folder / INDEX).is_file():
        for shard in shards(folder / INDEX, name):
            if not (folder / shard).is_file():
                message = f"{name!r} lacks {shard}, which its {INDEX} names; copy that file into the folder"
                raise ModelUnavailableError(message)
        return
    pickled = sorted(file.name for file in folder.iterdir() if _PICKLED.fullmatch(file.name))
    raise ModelUnavailableError(_no_safetensors(name, pickled[0] if pickled else None))


def shards(index: Path, name: str) -> list[str]:
    """Read which files the weights are split into."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelUnavailableError(f"{INDEX} of {name!r} is damaged; fetch it again") from error
    for shard in names:
        # A name with a folder in it could lie outside the repository; any other suffix may be a pickle.
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            message = f"{INDEX} of {name!r} names {shard!r}, which is no safetensors file; choose another model"
            raise ModelUnavailableError(message)
    return names


def _cached(repo_id: str, name: str, revision: str) -> Path | None:
    """Return a file's place in the cache, if it is there."""
    found = try_to_load_from_cache(repo_id, name, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _get(repo_id: str, name: str, commit: str, online: bool = True) -> Path | None:
    """Return a file's place in the cache, fetching it if need be; None if it cannot be had there."""
    if _cached(repo_id, name, commit) or (online and _exists(repo_id, name, commit)):
        return _download(repo_id, name, commit)
    return None


def _download(repo_id: str, name: str, revision: str) -> Path:
    """Return a file's place in the cache, fetching it if need be, and refuse one that is not what the hub announced."""
    # Several processes that want one file wait for the first, which has a lock. A file takes its name when it is whole.
    found = _cached(repo_id, name, revision) if _COMMIT.fullmatch(revision) else None
    file = found or Path(hf_hub_download(repo_id, name, revision=revision, tqdm_class=_Progress))
    hub_digests.check(file, repo_id)
    return file


def _metadata(repo_id: str, name: str, revision: str, tries: int = _TRIES) -> HfFileMetadata:
    """Ask the hub about a file; where it limits how often it is asked, wait as it says and ask again."""
    # For nothing else: `hf_hub_download` on its own would wait minutes for a server that fell silent.
    for number in itertools.count(1):
        try:
            return get_hf_file_metadata(hf_hub_url(repo_id, name, revision=revision))
        except HfHubHTTPError as error:
            pause = _pause(error)
            if error.response.status_code != 429 or number >= tries or (pause or 0) > _LONGEST_PAUSE:
                raise
        pause = _FIRST_PAUSE * 2 ** (number - 1) if pause is None else pause
        if pause >= _WORTH_TELLING:
            host = urlsplit(constants.ENDPOINT).netloc
            print(f"{host} limits how often it is asked (429); waiting {pause:.0f} s", flush=True)
        time.sleep(pause)


def _pause(error: HfHubHTTPError) -> float | None:
    """Read how many seconds a hub wants to be left alone, if it says so."""
    limit, after = parse_ratelimit_headers(error.response.headers), error.response.headers.get("Retry-After", "")
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    return float(after) if re.fullmatch(r"\d{1,9}", after, flags=re.ASCII) else None


def _exists(repo_id: str, name: str, commit: str) -> bool:
    """Ask the hub whether a repository has a file."""
    try:
        _metadata(repo_id, name, commit)
    except EntryNotFoundError:
        return False
    except HfHubHTTPError as error:
        if error.response.status_code == 404:
            return False
        raise
    return True


def _found(repo_id: str, name: str, revision: str | None) -> tuple[Path, bool]:
    """Do what `_resolve` does, and say that a repository lacks a file where it is there itself."""
    try:
        return _resolve(repo_id, revision or constants.DEFAULT_REVISION, name)
    except EntryNotFoundError:
        page = f"{constants.ENDPOINT}/{repo_id}/tree/main"
        raise ModelUnavailableError(f"{repo_id!r} has no file {name}; its files are listed at {page}") from None


def _resolve(repo_id: str, revision: str, name: str) -> tuple[Path, bool]:
    """Find the commit a revision stands for: a file of it in the cache, and whether the hub can be asked for more."""
    found = _cached(repo_id, name, revision)
    try:
        metadata = _metadata(repo_id, name, revision, tries=1 if found else _TRIES)
    except (RevisionNotFoundError, EntryNotFoundError):
        raise
    except (httpx2.TransportError, HfHubHTTPError, OfflineModeIsEnabled):
        if found:
            hub_digests.check(found, repo_id)
            return found, False
        raise
    if metadata.commit_hash is None:
        host = urlsplit(constants.ENDPOINT).netloc
        raise ModelUnavailableError(
            f"{host} does not answer as a Hugging Face hub does; check HF_ENDPOINT and the proxy"
        )
    # Asked for by the revision's own name, so that the cache knows it when there is no network.
    return _download(repo_id, name, revision), True


@contextmanager
def _explained(repo_id: str, revision: str | None) -> Generator[None]:
    """Turn whatever goes wrong while fetching into one line that says what to do."""
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        yield
    except CouplingError:
        raise
    except (httpx2.HTTPError, OSError, ValueError, EntryNotFoundError) as error:
        raise ModelUnavailableError(_explain(error, repo_id, revision)) from error
    finally:
        hub_logging.set_verbosity(verbosity)


def _explain(error: BaseException, repo_id: str, revision: str | None) -> str:
    """Describe a failure of the hub, the network or the disk in one line."""
    who, host, page = repr(repo_id), urlsplit(constants.ENDPOINT).netloc, f"{constants.ENDPOINT}/{repo_id}"
    login = f"accept its licence at {page}, then run `hf auth login`"
    embedded = (entry.alias for entry in registry.entries() if entry.embedded and entry.family != "ViT")
    without = f"use {' or '.join(map(repr, embedded))}"
    for cause in _causes(error):
        status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
        if isinstance(cause, HFValidationError):
            return f"{who} is no alias, no folder and no Hugging Face id; an id has the form 'organisation/name'"
        if isinstance(cause, RevisionNotFoundError):
            return f"{who} has no revision {revision!r}; its branches and tags are listed at {page}/tree/main"
        if isinstance(cause, GatedRepoError) or status == 403:
            return f"{who} is gated (hub: {status}); {login}"
        if status == 401:
            return f"{who} does not exist, or needs a login (hub: 401); check the spelling, {login}"
        if status == 404 and revision is not None:
            return f"{who} does not exist or has no revision {revision!r} (404); look for both at {page}"
        if status == 404:
            return f"{who} does not exist on {host} (404); check the spelling of the id"
        if isinstance(cause, _TruncatedError) or status == 416 or "Consistency check failed" in str(cause):
            return f"a file of {who} arrived truncated from {host}; run the same again to resume the download"
        if status == 429:
            pause = _pause(cause)
            when = "later" if pause is None else f"in {pause:.0f} s"
            return f"{host} limits how often it is asked for {who} (429); run the same again {when}, or `hf auth login`"
        if status is not None:
            return f"{host} answered {status} for {who}; try again later"
        if isinstance(cause, httpx2.TimeoutException):
            more = "set HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT to more seconds"
            return f"{host} did not answer within {constants.HF_HUB_ETAG_TIMEOUT} s for {who}; try again, or {more}"
        if isinstance(cause, httpx2.RemoteProtocolError):
            return f"{host} broke off while sending {who}; run the same again to resume the download"
        if isinstance(cause, OfflineModeIsEnabled):
            return f"HF_HUB_OFFLINE is set and {who} is not in the local cache; unset it, or {without}"
        if isinstance(cause, httpx2.TransportError):
            return f"{host} cannot be reached and {who} is not in the local cache; connect to a network, or {without}"
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return f"the disk is full while fetching {who}; free some space, or set HF_HOME to a larger disk"
        if isinstance(cause, PermissionError):
            return f"{constants.HF_HUB_CACHE} cannot be written; set HF_HOME to a folder of your own"
    return f"{who} cannot be fetched ({type(error).__name__}: {' '.join(str(error).split())}); try again"


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and those that led to it, the most telling first."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)
    # The hub's own classes say more than the HTTP error they were made from.
    telling = (HfHubHTTPError, HFValidationError, _TruncatedError)
    return sorted(chain, key=lambda cause: not isinstance(cause, telling))


def _no_safetensors(name: str, pickled: str | None) -> str:
    """Return why weights that are pickled, or missing, are refused."""
    if not pickled:
        return f"{name!r} has no {WEIGHTS}; choose a model with safetensors weights"
    danger = f"only pickled weights ({pickled}), which can run code when they are opened"
    return f"{name!r} has {danger}; convert them to safetensors, or name a revision that has them"
