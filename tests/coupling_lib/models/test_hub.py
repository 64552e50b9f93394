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

LOAD = "from coupling_lib.models.load import load_model; model = load_model({!r})"
ALIAS = LOAD.format("llama3-8b")
COMMON = f"""
import json, sys, time
from coupling_lib.blocks import weight_memory
from coupling_lib.errors import ModelUnavailableError
from coupling_lib.models.load import load_model

def shown(name, **how):
    model = load_model(name, **how)
    sums = {{name: p.double().sum().item() for name, p in model.hf.named_parameters()}}
    text = model.tokenizer.decode(model.tokenizer("Paris").input_ids)
    return [sums, model.source, model.revision, model.seed, text]

def refused(name, **how):
    try:
        load_model(name, **how)
    except ModelUnavailableError as error:
        return str(error)

REPO_ID, found = {REPO_ID!r}, {{}}
"""


def answers(hub, home, code, *arguments, **settings):
    """What one user finds who runs a program, with a hub or without one."""
    endpoint = hub.endpoint if hub else closed_port()
    done = run(f"{COMMON}{code}\njson.dump(found, sys.stdout)", user(home, endpoint, **settings), *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def revisions(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    tiny.save_llama(root / "main", seed=1)
    for name in ("step128", "torn"):
        tiny.save_llama(root / name, seed=2, max_shard_size="20KB")
    max((root / "torn").glob("model-*.safetensors")).unlink()
    model = tiny.save_llama(root / "pickled")
    (root / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), root / "pickled" / "pytorch_model.bin")
    (root / "adapter").mkdir()
    (root / "adapter" / "adapter_config.json").write_text("{}")
    (root / "gguf" / "sub").mkdir(parents=True)
    write(root / "gguf" / "sub" / "tiny.gguf", "Q8_0")
    return {folder.name: folder for folder in root.iterdir()}


def test_alias_is_downloaded_then_read_from_cache(tmp_path, revisions):
    code = 'found["alias"] = shown("llama3-8b")'
    with Hub(revisions) as hub:
        got = answers(hub, tmp_path, code)
        weights, *rest = got["alias"]
        assert weights == pytest.approx(sums(1), rel=1e-12)
        assert rest == [f"{REPO_ID}@{hub.commit('main')}", "main", None, "Paris"]
        assert hub.fetched(REPO_ID) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert answers(None, tmp_path, f'{code}\nfound["other"] = refused("some/other")') == got | {
        "other": f"{closed_port().removeprefix('http://')} cannot be reached (ConnectError) and 'some/other' is not in "
        "the local cache; connect to a network, or use 'nano-neox' or 'nano-llama'"
    }


SEVERAL = """
found["step128"] = shown(REPO_ID, revision="step128")
found["untrained"] = shown("un/trained", untrained=True, seed=6)
found["gguf"] = shown(REPO_ID + "/sub/tiny.gguf", revision="gguf")
found["no gguf"] = refused(REPO_ID + "/sub/none.gguf", revision="gguf")
found["step7"] = refused(REPO_ID, revision="step7")
found |= {revision: refused("llama3-8b", revision=revision) for revision in ("torn", "pickled", "adapter")}
weight_memory.available = lambda device: 1000
found["large"] = refused("too/large")
"""


def test_models_of_one_hub_are_downloaded_or_refused(tmp_path, revisions):
    with Hub(revisions, also={"un/trained": "ok", "too/large": "ok"}) as hub:
        found = answers(hub, tmp_path / "home", SEVERAL)
    # A revision has its own weights, a model without weights those that are drawn here, and a GGUF file comes alone.
    weights, *rest = found.pop("step128")
    assert weights == pytest.approx(sums(2), rel=1e-12)
    assert rest == [f"{REPO_ID}@{hub.commit('step128')}", "step128", None, "Paris"]
    tiny.save_llama(tmp_path / "local")
    local = load_model(tmp_path / "local", untrained=True, seed=6).hf
    weights, *_, seed, _ = found.pop("untrained")
    assert weights == pytest.approx({name: p.double().sum().item() for name, p in local.named_parameters()}, rel=1e-12)
    assert seed == 6
    _, source, *rest = found.pop("gguf")
    assert source.startswith(f"{REPO_ID}@{hub.commit('gguf')}:sub/tiny.gguf (Q8_0, sha256 ")
    assert rest == ["gguf", None, "Paris"]
    assert found.pop("large").startswith("'too/large' needs 0.2 MB in float32, and 0.0 MB are free")
    page, index = f"are listed at {hub.endpoint}/{REPO_ID}/tree/main", "model.safetensors.index.json"
    last = max(json.loads((revisions["torn"] / index).read_text())["weight_map"].values())
    assert found == {
        "step7": f"'{REPO_ID}' has no revision 'step7'; its branches and tags {page}",
        "torn": f"'llama3-8b' lacks {last}, which its {index} names; take the complete set",
        "adapter": "'llama3-8b' has no config.json; choose a model in the transformers format",
        "pickled": "'llama3-8b' has no model.safetensors; pickled weights, which can run code when they are opened, "
        "are not read: convert them to safetensors, or choose a model or a revision that has them",
        "no gguf": f"'{REPO_ID}' has no file sub/none.gguf; its files {page}",
    }
    fetched = [line for line in hub.requests if line.startswith("GET ") and "/resolve/" in line]
    file = f"GET /{REPO_ID}/resolve/{hub.commit('gguf')}/sub/tiny.gguf"
    assert {line for line in fetched if hub.commit("gguf") in line} == {file}
    assert not [line for line in fetched if line.endswith(".bin")]
    assert not [
        line for line in hub.requests if ("un/trained" in line or "too/large" in line) and "safetensors" in line
    ]


@pytest.mark.thorough
def test_gguf_is_downloaded_then_read_from_cache(tmp_path, revisions):
    name = f"{REPO_ID}/sub/tiny.gguf"
    code = f"model = load_model({name!r}); found = [model.name, model.revision, model.source, model.n_blocks]"
    with Hub({"main": revisions["gguf"]}) as hub:
        got = answers(hub, tmp_path, code)
    assert got[:2] == [name, "main"] and answers(None, tmp_path, code) == got


LOGIN = "check the spelling, accept its licence at {endpoint}/{id}, then run `hf auth login`"
NOT_CACHED = "{host} answered {mode} for '{id}', which is not in the local cache; try again later"
LINES = {
    "401": "'{id}' does not exist, or needs a login (hub: {mode}); " + LOGIN,
    "403": "'{id}' is gated (hub: {mode}); " + LOGIN,
    "404": "'{id}' does not exist on {host} ({mode}); check the spelling of the id",
    "429": NOT_CACHED,
    "500": NOT_CACHED,
    "silent": "{host} cannot be reached (ReadTimeout) and '{id}' is not in the local cache; connect to a network, "
    "or use 'nano-neox' or 'nano-llama'",
    "not-a-hub": "'{id}' cannot be fetched from {host} (JSONDecodeError: 'Expecting value: line 1 column 1 (char 0)'); "
    "check HF_ENDPOINT, the network and the room in HF_HOME, then run the same again",
}


def told(line, hub, mode, id):
    return line.format(endpoint=hub.endpoint, host=hub.endpoint.removeprefix("http://"), mode=mode, id=id)


EACH = """
for mode in sys.argv[1:]:
    start = time.monotonic()
    found[mode] = refused("ill/" + mode), time.monotonic() - start
"""


@pytest.mark.thorough
def test_each_hub_failure_has_its_error_line(tmp_path, revisions):
    limits = {"HF_HUB_ETAG_TIMEOUT": "5", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
    with Hub(revisions, also={f"ill/{mode}": mode for mode in LINES}) as hub:
        found = answers(hub, tmp_path, EACH, *LINES, **limits)
    lines = {mode: told(line, hub, mode, f"ill/{mode}") for mode, line in LINES.items()}
    assert {mode: line for mode, (line, _) in found.items()} == lines
    assert max(seconds for _, seconds in found.values()) < 30


def test_gated_model_needs_the_right_token(tmp_path, revisions):
    with Hub(revisions, "gated") as hub:
        without = run(ALIAS, user(tmp_path, hub.endpoint))
        assert last_line(without) == told(LINES["403"], hub, "401", REPO_ID)
        refused = run(ALIAS, user(tmp_path, hub.endpoint, HF_TOKEN="hf_another"))
        assert last_line(refused) == told(LINES["403"], hub, "403", REPO_ID) and "hf_another" not in refused.stderr
        assert run(ALIAS, user(tmp_path, hub.endpoint, HF_TOKEN=TOKEN)).returncode == 0


def test_offline_mode_refuses_what_is_not_cached(tmp_path):
    line = last_line(run(ALIAS, user(tmp_path, closed_port(), HF_HUB_OFFLINE="1")))
    assert "HF_HUB_OFFLINE is set" in line and f"'{REPO_ID}' is not in the local cache" in line
    assert line.endswith("or use 'nano-neox' or 'nano-llama'")


@pytest.mark.thorough
def test_notebook_runs_on_a_downloaded_model(tmp_path, revisions):
    def papermill(endpoint, model):
        command = [*"-m papermill notebooks/depth.ipynb".split(), tmp_path / "out.ipynb", "-p", "model", model]
        how = {"env": user(tmp_path / "home", endpoint), "cwd": ROOT, "capture_output": True, "text": True}
        return subprocess.run([sys.executable, *command], check=False, **how)

    with Hub(revisions) as hub:
        done = papermill(hub.endpoint, "llama3-8b")
    assert done.returncode == 0, done.stderr
    assert f"GET /{REPO_ID}/resolve/{hub.commit('main')}/model.safetensors" in hub.requests
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    shown = ["".join(out.get("data", {}).get("text/html", "")) for cell in cells for out in cell.get("outputs", [])]
    assert sum("<img" in page for page in shown) >= 4
    line = last_line(papermill(closed_port(), "some/other"))
    assert line.startswith("ModelUnavailableError: ") and "cannot be reached" in line and line.endswith("'nano-llama'")
