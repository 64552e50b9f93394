"""A hub that limits, breaks off, alters, refuses or lacks something: right weights after a while, or one line."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter

import pytest
import tiny
import torch
from hub_server import TOKEN, Hub
from hub_users import last_line, run, sums, user

from coupling_lib import paths
from coupling_lib.errors import ModelUnavailableError
from coupling_lib.models import hub_digests

# Loads what the command line names, one after the other; what was found and what was said goes to the standard output.
LOADS = """
import json, sys, time
from coupling_lib.errors import CouplingError
from coupling_lib.models import hub
from coupling_lib.models.load import load_model
hub._FIRST_PAUSE = 0.01
found = {}
for name in sys.argv[1:]:
    start = time.monotonic()
    try:
        got = {n: p.double().sum().item() for n, p in load_model(name).hf.named_parameters()}
    except CouplingError as error:
        got = str(error)
    found[name] = got, time.monotonic() - start
print()
json.dump(found, sys.stdout)
"""
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def main(tmp_path_factory):
    """A repository with one revision, whose weights are those of seed 1."""
    folder = tmp_path_factory.mktemp("repository") / "main"
    tiny.save_llama(folder, seed=1)
    return {"main": folder}


def loaded(environment, *names):
    """What a user finds under several names, one after the other: the sums of its weights, or a line; and when."""
    done = run(LOADS, environment, *names)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def right(found) -> bool:
    return found == pytest.approx(sums(1), rel=1e-12)


def fetched(hub: Hub, repo_id: str) -> list[str]:
    """The files of a repository that were asked for in full, as often as they were."""
    return [line.rsplit("/", 1)[1] for line in hub.requests if line.startswith(f"GET /{repo_id}/")]


PASSING = ("429:2", "429-second:1", "truncated:1", "no-ranges:1", "slow")


@pytest.mark.thorough
def test_what_passes_is_waited_for_and_gives_the_right_weights(tmp_path, main):
    names = {mode.replace(":", "-times-"): mode for mode in PASSING}
    with Hub(main, also={f"ill/{name}": mode for name, mode in names.items()}) as hub:
        found = loaded(user(tmp_path, hub.endpoint), *(f"ill/{name}" for name in names))
        asked = [Counter(fetched(hub, f"ill/{name}")) for name in names]
    assert [name for name, (got, _) in found.items() if not right(got)] == []
    # The first files are refused twice, and once; of weights that break off the rest is fetched, or the whole.
    assert [counts["config.json"] for counts in asked] == [3, 2, 1, 1, 1]
    assert [counts[WEIGHTS] for counts in asked] == [1, 1, 2, 2, 1]
    assert not list(tmp_path.rglob("*.incomplete*"))


LASTING = {
    "429": "{host} limits how often it is asked for 'ill/429' (429); run the same again later, or `hf auth login`",
    "429-hour": "{host} limits how often it is asked for 'ill/429-hour' (429); run the same again in 3600 s, or `hf "
    "auth login`",
    "other-size": "a file of 'ill/other-size' arrived truncated from {host}; run the same again to resume the download",
    "altered": "model.safetensors of 'ill/altered' has the SHA-256 {altered}, and the hub announced {announced}; it "
    "was removed, run the same again to fetch it anew",
    "gated": "'ill/gated' is gated (hub: 401); accept its licence at {endpoint}/ill/gated, then run `hf auth login`",
}


@pytest.mark.thorough
def test_what_lasts_ends_in_one_line_each_time_and_leaves_nothing_that_is_used(tmp_path, main):
    weights = (main["main"] / WEIGHTS).read_bytes()
    altered = hashlib.sha256(weights[:-1] + bytes([weights[-1] ^ 1])).hexdigest()[:12]
    with Hub(main, also={f"ill/{mode}": mode for mode in LASTING}) as hub:
        names = [f"ill/{mode}" for mode in LASTING]
        environment = user(tmp_path, hub.endpoint)
        said = {"host": hub.endpoint.removeprefix("http://"), "endpoint": hub.endpoint, "altered": altered}
        said["announced"] = hashlib.sha256(weights).hexdigest()[:12]
        for _ in range(2):
            found = loaded(environment, *names)
            lines = {name.removeprefix("ill/"): line for name, (line, _) in found.items()}
            assert lines == {mode: line.format(**said) for mode, line in LASTING.items()}
        assert max(seconds for _, seconds in found.values()) < 30
        assert not [file for file in (tmp_path / "hub").rglob("*") if WEIGHTS in file.name]
        hub.modes |= dict.fromkeys(names, "ok")
        assert all(right(got) for got, _ in loaded(environment, *names).values())


def test_a_gated_model_is_had_with_the_right_token_alone_and_no_line_holds_it(tmp_path, main):
    with Hub(main, also={"gated/model": "gated"}) as hub:
        for token, status in (("hf_another", 403), (TOKEN, None)):
            (got, _) = loaded(user(tmp_path, hub.endpoint, HF_TOKEN=token), "gated/model")["gated/model"]
            assert right(got) if status is None else f"'gated/model' is gated (hub: {status})" in got
            assert token not in str(got)
        sent = {token for line, token in zip(hub.requests, hub.tokens, strict=True) if "/resolve/" in line}
        assert sent == {"Bearer hf_another", f"Bearer {TOKEN}"}


@pytest.mark.thorough
def test_a_missing_shard_is_named_before_any_other_is_downloaded(tmp_path, main):
    folder = tmp_path / "repository"
    tiny.save_llama(folder, seed=1, max_shard_size="20KB")
    last = max(folder.glob("model-*.safetensors"))
    content = last.read_bytes()
    last.unlink()
    with Hub({"main": folder}, also={"a/model": "ok"}) as hub:
        environment = user(tmp_path, hub.endpoint)
        line, _ = loaded(environment, "a/model")["a/model"]
        index = f"{WEIGHTS}.index.json"
        assert line == f"'a/model' lacks {last.name}, which its {index} names; choose another revision"
        assert sorted(fetched(hub, "a/model")) == sorted(
            ["config.json", index, "tokenizer.json", "tokenizer_config.json"]
        )
        last.write_bytes(content)
        assert right(loaded(environment, "a/model")["a/model"][0])


def test_pickled_weights_alone_are_refused_and_nothing_of_them_is_downloaded(tmp_path):
    folder = tmp_path / "repository"
    model = tiny.save_llama(folder)
    (folder / WEIGHTS).unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with Hub({"main": folder}, also={"a/pickle": "ok"}) as hub:
        line, _ = loaded(user(tmp_path, hub.endpoint), "a/pickle")["a/pickle"]
        assert not [name for name in fetched(hub, "a/pickle") if "pytorch" in name]
    assert line == (
        "'a/pickle' has only pickled weights (pytorch_model.bin), which can run code when they are opened; convert "
        "them to safetensors, or name a revision that has them"
    )


# Looks for the weights alone, which stay half there; another file of the cache may vanish between a list and a look.
KILLED = """
import os, signal, threading, time
from pathlib import Path
def kill():
    blobs = Path(os.environ["HF_HOME"], "hub", "models--a--model", "blobs")
    while not any(f.stat().st_size for f in blobs.glob(os.environ["DIGEST"] + "*.incomplete")):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill).start()
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1000
"""


def test_a_process_that_is_killed_in_a_download_leaves_nothing_that_is_used(tmp_path, main):
    with Hub(main, also={"a/model": "half"}) as hub:
        environment = user(tmp_path, hub.endpoint, DIGEST=hub_digests.sha256(main["main"] / WEIGHTS))
        done = run(KILLED + LOADS, environment, "a/model")
        assert done.returncode == 137, done.stderr
        hub.modes["a/model"] = "ok"
        assert right(loaded(environment, "a/model")["a/model"][0])


TWELVE = """
import json, os, sys
from coupling_lib.models.load import load_model
children = []
for number in range(12):
    if not (child := os.fork()):
        try:
            got = {n: p.double().sum().item() for n, p in load_model("a/model").hf.named_parameters()}
            with open(f"{sys.argv[1]}/{number}.json", "w") as file:
                json.dump(got, file)
        finally:
            os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


@pytest.mark.thorough
def test_twelve_jobs_that_want_one_model_at_once_download_each_file_once(tmp_path, main):
    with Hub(main, also={"a/model": "slow"}) as hub:
        done = run(TWELVE, user(tmp_path, hub.endpoint), str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert set(Counter(fetched(hub, "a/model")).values()) == {1}
        assert sorted(fetched(hub, "a/model")) == ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
    found = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(12)]
    assert len(found) == 12 and all(map(right, found))


@pytest.fixture
def blob(tmp_path, monkeypatch):
    """A file as the hub's cache keeps it: a link to a file that is called by its SHA-256."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    content = b"weights" * 1000
    file = tmp_path / hashlib.sha256(content).hexdigest()
    file.write_bytes(content)
    (tmp_path / WEIGHTS).symlink_to(file)
    return file


def test_a_file_of_the_cache_that_changed_since_is_refused_and_removed(blob, tmp_path):
    hub_digests.check(tmp_path / WEIGHTS, "a/model")
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    with pytest.raises(ModelUnavailableError, match=r"has the SHA-256 \w{12}, and the hub announced .* was removed"):
        hub_digests.check(tmp_path / WEIGHTS, "a/model")
    assert not blob.exists() and not (tmp_path / WEIGHTS).is_symlink()


def test_a_large_file_is_read_once_and_again_when_it_changed(blob, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_digests, "_SECONDS", 0.0)
    read, digest = [], hub_digests.sha256
    monkeypatch.setattr(hub_digests, "sha256", lambda file: read.append(file) or digest(file))
    for _ in range(2):
        hub_digests.check(tmp_path / WEIGHTS, "a/model")
    assert read == [blob] and len(list((tmp_path / "cache" / "intact").iterdir())) == 1
    time.sleep(0.01)
    blob.write_bytes(blob.read_bytes())
    hub_digests.check(tmp_path / WEIGHTS, "a/model")
    assert read == [blob, blob]
    blob.write_bytes(b"altered")
    with pytest.raises(ModelUnavailableError, match="run the same again to fetch it anew"):
        hub_digests.check(tmp_path / WEIGHTS, "a/model")


def test_a_file_that_is_not_called_by_its_content_is_left_alone(tmp_path):
    (tmp_path / WEIGHTS).write_bytes(b"anything")
    hub_digests.check(tmp_path / WEIGHTS, "a/model")
    assert (tmp_path / WEIGHTS).read_bytes() == b"anything"


def test_the_line_of_a_limit_is_the_last_of_a_process_that_fails(tmp_path, main):
    with Hub(main, also={"a/model": "429-hour"}) as hub:
        code = "from coupling_lib.models.load import load_model; load_model('a/model')"
        line = last_line(run(code, user(tmp_path, hub.endpoint)))
    assert line.endswith(
        "limits how often it is asked for 'a/model' (429); run the same again in 3600 s, or `hf auth login`"
    )
