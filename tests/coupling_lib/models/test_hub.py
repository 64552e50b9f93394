"""The hub is a server on the loopback interface; each user is a process of its own with an empty cache.

`huggingface_hub` reads HF_ENDPOINT and HF_HOME when it is imported, so nothing here can be tested in place.
"""

import json
import subprocess
import sys

import pytest
import tiny
import torch
from hub_server import REPO_ID, TOKEN, Hub
from hub_users import ROOT, closed_port, last_line, run, sums, user
from tiny_gguf import write

from coupling_lib.models.load import load_model

IMPORTS = "from coupling_lib.errors import ModelUnavailableError; from coupling_lib.models.load import load_model\n"
LOAD = "from coupling_lib.models.load import load_model; model = load_model({arguments})"
SHOW = """
import json, sys
sums = {name: p.double().sum().item() for name, p in model.hf.named_parameters()}
json.dump({"sums": sums, "source": model.source, "revision": model.revision, "seed": model.seed,
           "text": model.tokenizer.decode(model.tokenizer("Paris").input_ids)}, sys.stdout)
"""
ELSE = """
try:
    load_model("some/other")
except Exception as error:
    print("\\n" + str(error))
"""


@pytest.fixture(scope="module")
def revisions(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    tiny.save_llama(root / "main", seed=1)
    tiny.save_llama(root / "step128", seed=2, max_shard_size="20KB")
    model = tiny.save_llama(root / "pickled")
    (root / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), root / "pickled" / "pytorch_model.bin")
    (root / "adapter").mkdir()
    (root / "adapter" / "adapter_config.json").write_text("{}")
    return {name: root / name for name in ("main", "step128", "pickled", "adapter")}


def test_alias_is_downloaded_then_read_from_cache(tmp_path, revisions):
    with Hub(revisions) as hub:
        first = run(LOAD.format(arguments="'llama3-8b'") + SHOW, user(tmp_path, hub.endpoint))
        assert first.returncode == 0, first.stderr
        got = json.loads(first.stdout)
        assert got["sums"] == pytest.approx(sums(1), rel=1e-12)
        assert got["source"] == f"{REPO_ID}@{hub.commit('main')}"
        assert (got["revision"], got["seed"], got["text"]) == ("main", None, "Paris")
        assert hub.fetched(REPO_ID) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    nowhere = closed_port()
    again = run(LOAD.format(arguments="'llama3-8b'") + SHOW + ELSE, user(tmp_path, nowhere))
    assert again.returncode == 0, again.stderr
    shown, refused = again.stdout.splitlines()
    assert json.loads(shown) == got
    assert refused == (
        f"{nowhere.removeprefix('http://')} cannot be reached (ConnectError) and 'some/other' is not in the local "
        "cache; connect to a network, or use 'nano-neox' or 'nano-llama'"
    )


SEVERAL = """
from coupling_lib.blocks import weight_memory
def shown(**arguments):
    model = load_model(**arguments)
    sums = {name: p.double().sum().item() for name, p in model.hf.named_parameters()}
    return [sums, model.source, model.revision, model.seed]
def refused(**arguments):
    try:
        load_model(**arguments)
    except ModelUnavailableError as error:
        return str(error)
found = {"step128": shown(name=REPO_ID, revision="step128")}
found |= {"untrained": shown(name="un/trained", untrained=True, seed=6)}
found |= {"step7": refused(name=REPO_ID, revision="step7"), "pickled": refused(name="llama3-8b", revision="pickled")}
found["adapter"] = refused(name="llama3-8b", revision="adapter")
weight_memory.available = lambda device: 1000
found["large"] = refused(name="too/large")
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory, revisions):
    """What one user gets who asks for several models one after the other, and what the hub was asked for."""
    with Hub(revisions, also={"un/trained": "ok", "too/large": "ok"}) as hub:
        code = f"import json, sys\nREPO_ID = {REPO_ID!r}\n{IMPORTS}{SEVERAL}"
        done = run(code, user(tmp_path_factory.mktemp("home"), hub.endpoint))
        assert done.returncode == 0, done.stderr
        return hub, json.loads(done.stdout)


def test_revision_is_downloaded_with_its_own_weights(several, tmp_path):
    hub, found = several
    sums_of_step, source, revision, _ = found["step128"]
    assert sums_of_step == pytest.approx(sums(2), rel=1e-12)
    assert (revision, source) == ("step128", f"{REPO_ID}@{hub.commit('step128')}")
    tiny.save_llama(tmp_path)
    local = load_model(tmp_path, untrained=True, seed=6).hf
    wanted = {name: p.double().sum().item() for name, p in local.named_parameters()}
    assert found["untrained"][0] == pytest.approx(wanted, rel=1e-12) and found["untrained"][3] == 6
    assert not [line for line in hub.requests if "un/trained" in line and "safetensors" in line]


def test_missing_pickled_or_too_large_models_are_refused(several):
    hub, found = several
    page = f"{hub.endpoint}/{REPO_ID}/tree/main"
    assert found["step7"] == f"'{REPO_ID}' has no revision 'step7'; its branches and tags are listed at {page}"
    assert found["adapter"] == "'llama3-8b' has no config.json; choose a model in the transformers format"
    assert found["pickled"] == (
        "'llama3-8b' has no model.safetensors; pickled weights, which can run code when they are opened, are not read: "
        "convert them to safetensors, or choose a model or a revision that has them"
    )
    assert not [name for name in hub.fetched(REPO_ID) if name.endswith(".bin")]
    assert found["large"].startswith("'too/large' needs 0.2 MB in float32, and 0.0 MB are free")
    assert not [request for request in hub.requests if "too/large" in request and "safetensors" in request]


LINES = {
    "401": "'ill/401' does not exist, or needs a login (hub: 401); check the spelling, accept its licence at "
    "{endpoint}/ill/401, then run `hf auth login`",
    "403": "'ill/403' is gated (hub: 403); check the spelling, accept its licence at {endpoint}/ill/403, then run `hf "
    "auth login`",
    "404": "'ill/404' does not exist on {host} (404); check the spelling of the id",
    "429": "{host} answered 429 for 'ill/429', which is not in the local cache; try again later",
    "500": "{host} answered 500 for 'ill/500', which is not in the local cache; try again later",
    "silent": "{host} cannot be reached (ReadTimeout) and 'ill/silent' is not in the local cache; connect to a "
    "network, or use 'nano-neox' or 'nano-llama'",
    "not-a-hub": "'ill/not-a-hub' cannot be fetched from {host} (JSONDecodeError: 'Expecting value: line 1 column 1 "
    "(char 0)'); check HF_ENDPOINT, the network and the room in HF_HOME, then run the same again",
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory, revisions):
    """What one user is told of each failure, and after how many seconds."""
    with Hub(revisions, also={f"ill/{mode}": mode for mode in LINES}) as hub:
        limits = {"HF_HUB_ETAG_TIMEOUT": "5", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
        done = run(ALL, user(tmp_path_factory.mktemp("home"), hub.endpoint, **limits), *LINES)
        assert done.returncode == 0, done.stderr
        return hub, json.loads(done.stdout)


ALL = f"""
import json, sys, time
{IMPORTS}
found = {{}}
for mode in sys.argv[1:]:
    start = time.monotonic()
    try:
        load_model("ill/" + mode)
    except ModelUnavailableError as error:
        found[mode] = str(error), time.monotonic() - start
json.dump(found, sys.stdout)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("mode", LINES)
def test_each_hub_failure_has_its_error_line(failed, mode):
    hub, found = failed
    line, seconds = found[mode]
    assert line == LINES[mode].format(endpoint=hub.endpoint, host=hub.endpoint.removeprefix("http://"))
    assert seconds < 30


def test_gated_model_needs_the_right_token(tmp_path, revisions):
    code = LOAD.format(arguments="'llama3-8b'")
    with Hub(revisions, "gated") as hub:
        assert "is gated (hub: 401); check" in last_line(run(code, user(tmp_path, hub.endpoint)))
        refused = run(code, user(tmp_path, hub.endpoint, HF_TOKEN="hf_another"))
        assert "is gated (hub: 403); check" in last_line(refused) and "hf_another" not in refused.stderr
        assert run(code, user(tmp_path, hub.endpoint, HF_TOKEN=TOKEN)).returncode == 0


def test_a_missing_shard_is_named(tmp_path):
    folder = tmp_path / "repository"
    tiny.save_llama(folder, seed=1, max_shard_size="20KB")
    last = max(folder.glob("model-*.safetensors"))
    last.unlink()
    with Hub({"main": folder}) as hub:
        line = last_line(run(LOAD.format(arguments="'llama3-8b'"), user(tmp_path, hub.endpoint)))
    assert line == f"'llama3-8b' lacks {last.name}, which its model.safetensors.index.json names; take the complete set"


def test_gated_alias_and_offline_mode_are_refused(tmp_path, revisions):
    with Hub(revisions, "403") as hub:
        line = last_line(run(LOAD.format(arguments="'llama3-8b'"), user(tmp_path, hub.endpoint)))
    assert line == LINES["403"].format(endpoint=hub.endpoint).replace("ill/403", REPO_ID)
    line = last_line(run(LOAD.format(arguments="'llama3-8b'"), user(tmp_path, closed_port(), HF_HUB_OFFLINE="1")))
    assert "HF_HUB_OFFLINE is set" in line and f"'{REPO_ID}' is not in the local cache" in line
    assert line.endswith("or use 'nano-neox' or 'nano-llama'")


def papermill(output, environment):
    command = [sys.executable, "-m", "papermill", "notebooks/depth.ipynb", str(output), "-p", "model", "llama3-8b"]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


# A download and its failures have their tests above; a notebook of one's own model, and the line of an error that
# papermill ends in, have theirs in `tests/workflow/test_notebooks.py` and `tests/coupling_lib/test_bad_input.py`.
@pytest.mark.thorough
def test_notebook_runs_on_a_downloaded_model(tmp_path, revisions):
    with Hub(revisions) as hub:
        done = papermill(tmp_path / "out.ipynb", user(tmp_path / "home", hub.endpoint))
        assert done.returncode == 0, done.stderr
        assert f"GET /{REPO_ID}/resolve/{hub.commit('main')}/model.safetensors" in hub.requests
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    ran = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in ran if "".join(cell["source"]).strip())
    shown = ["".join(out.get("data", {}).get("text/html", "")) for cell in ran for out in cell["outputs"]]
    assert sum("<svg" in html or "<img" in html for html in shown) >= 4


@pytest.mark.thorough
def test_notebook_without_network_ends_in_one_line(tmp_path):
    done = papermill(tmp_path / "out.ipynb", user(tmp_path / "home", closed_port()))
    assert done.returncode != 0
    line = done.stderr.rstrip().splitlines()[-1]
    assert line.startswith("ModelUnavailableError: ") and "cannot be reached" in line and line.endswith("'nano-llama'")


@pytest.mark.thorough
def test_hub_gguf_is_downloaded_then_read_from_cache(tmp_path, revisions):
    folder = tmp_path / "repository"
    (folder / "sub").mkdir(parents=True)
    write(folder / "sub" / "tiny.gguf", "Q8_0")
    show = "\nprint(model.name, model.source, model.revision, model.n_blocks, sep='|')\n"
    name = f"{REPO_ID}/sub/tiny.gguf"
    with Hub({"main": folder}) as hub:
        first = run(LOAD.format(arguments=repr(name)) + show, user(tmp_path, hub.endpoint))
        assert first.returncode == 0, first.stderr
        asked = set(hub.fetched(REPO_ID))
        lacking = run(LOAD.format(arguments=repr(name.replace("tiny", "none"))), user(tmp_path, hub.endpoint))
    got = first.stdout.strip().split("|")
    assert asked == {"sub/tiny.gguf"} and (got[0], got[2], got[3]) == (name, "main", "3")
    assert got[1].startswith(f"{REPO_ID}@{hub.commit('main')}:sub/tiny.gguf (Q8_0, sha256 ")
    assert f"{REPO_ID!r} has no file sub/none.gguf; its files are listed at" in last_line(lacking)
    again = run(LOAD.format(arguments=repr(name)) + show, user(tmp_path, closed_port()))
    assert again.stdout == first.stdout, again.stderr
