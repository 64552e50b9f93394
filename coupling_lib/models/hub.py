"""Fetching a model's files from the Hugging Face hub to its cache; errors are one line with the next step."""

import glob
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub import logging as hub_logging
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)

from coupling_lib.errors import ModelUnavailableError, shown
from coupling_lib.models import registry

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PROCESSOR = "preprocessor_config.json"
_OF_OLDER_TOKENIZERS = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
TOKENIZER_FILES += _OF_OLDER_TOKENIZERS


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """Fetch a model's configuration and tokenizer, or image processor, into the local cache; return their folder."""
    return _snapshot(repo_id, revision, ["config.json", PROCESSOR, *TOKENIZER_FILES])


def fetch_file(repo_id: str, name: str, revision: str | None = None) -> tuple[Path, str]:
    """Fetch one file into the local cache; return its path and its commit."""
    folder = _snapshot(repo_id, revision, [name])
    if not (folder / name).is_file():
        page = f"{constants.ENDPOINT}/{repo_id}/tree/main"
        raise ModelUnavailableError(f"{repo_id!r} has no file {name}; its files are listed at {page}")
    return folder / name, folder.name


def complete_weights(folder: Path, name: str, repo_id: str | None) -> None:
    """Fetch weights into the folder that `fetch` returned; refuse missing, incomplete or pickled ones."""
    if repo_id and not any((folder / file).is_file() for file in (WEIGHTS, INDEX)):
        _snapshot(repo_id, folder.name, [WEIGHTS, INDEX])
    if (folder / WEIGHTS).is_file():
        return
    if not (folder / INDEX).is_file():
        raise ModelUnavailableError(
            f"{name!r} has no {WEIGHTS}; pickled weights, which can run code when they are opened, are not read: "
            "convert them to safetensors, or choose a model or a revision that has them"
        )
    try:
        files = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelUnavailableError(f"{INDEX} of {name!r} is damaged; fetch it again") from error
    for file in files:
        # A name with a folder in it could lie outside the repository; any other suffix may be a pickle.
        if Path(file).name != file or not file.endswith(".safetensors"):
            named = f"{INDEX} of {name!r} names {file!r}, which is no safetensors file"
            raise ModelUnavailableError(f"{named}; choose another model")
    if repo_id and not all((folder / file).is_file() for file in files):
        _snapshot(repo_id, folder.name, files)
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise ModelUnavailableError(f"{name!r} lacks {missing[0]}, which its {INDEX} names; take the complete set")


def _snapshot(repo_id: str, revision: str | None, names: Sequence[str]) -> Path:
    """Fetch files of one commit into the cache, or use the cached ones if the hub does not answer."""
    wanted = {"revision": revision, "allow_patterns": list(map(glob.escape, names))}
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        try:
            # `snapshot_download` alone has no timeout.
            HfApi().model_info(repo_id, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
            return Path(snapshot_download(repo_id, **wanted))
        except RevisionNotFoundError:
            raise
        except (httpx2.TransportError, HfHubHTTPError, OfflineModeIsEnabled):
            return Path(snapshot_download(repo_id, local_files_only=True, **wanted))
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise ModelUnavailableError(_reason(error, repo_id, revision)) from error
    finally:
        hub_logging.set_verbosity(verbosity)


def _reason(error: BaseException, repo_id: str, revision: str | None) -> str:
    """Return one line with the reason why a model cannot be fetched, and the next step."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)

    def found(*kinds: type[BaseException]) -> BaseException | None:
        return next((one for one in chain if isinstance(one, kinds)), None)

    who, host, page = repr(repo_id), urlsplit(constants.ENDPOINT).netloc, f"{constants.ENDPOINT}/{repo_id}"
    answer = found(HfHubHTTPError)
    status = answer.response.status_code if isinstance(answer, HfHubHTTPError) else None
    if found(HFValidationError):
        return f"{who} is no alias, no folder and no Hugging Face id; an id has the form 'organisation/name'"
    if found(RevisionNotFoundError):
        return f"{who} has no revision {revision!r}; its branches and tags are listed at {page}/tree/main"
    if status in (401, 403):
        seen = "is gated" if found(GatedRepoError) or status == 403 else "does not exist, or needs a login"
        login = f"check the spelling, accept its licence at {page}, then run `hf auth login`"
        return f"{who} {seen} (hub: {status}); {login}"
    if status == 404:
        return f"{who} does not exist on {host} (404); check the spelling of the id"
    if status is not None:
        return f"{host} answered {status} for {who}, which is not in the local cache; try again later"
    if network := found(OfflineModeIsEnabled, httpx2.TransportError):
        offline = isinstance(network, OfflineModeIsEnabled)
        seen = "HF_HUB_OFFLINE is set" if offline else f"{host} cannot be reached ({type(network).__name__})"
        embedded = (entry.alias for entry in registry.entries() if entry.embedded and entry.family != "ViT")
        instead = f"{'unset it' if offline else 'connect to a network'}, or use {' or '.join(map(repr, embedded))}"
        return f"{seen} and {who} is not in the local cache; {instead}"
    return (
        f"{who} cannot be fetched from {host} ({type(error).__name__}: {shown(str(error), 200)}); check HF_ENDPOINT, "
        "the network and the room in HF_HOME, then run the same again"
    )
