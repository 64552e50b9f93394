"""What SECURITY.md promises: no pickle is opened, no text is run, none becomes markup, and every package is listed."""

import ast
import base64
import pickle
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pages
import pytest
import tiny
import torch
import xarray as xr
from installed import closure, lock, requirements
from matplotlib.figure import Figure
from refusals import refused

import coupling_lib as cl
from companion.figures import style, tokens
from companion.figures.show import show
from coupling_lib.errors import ModelUnavailableError
from coupling_lib.models.registry import entries
from coupling_lib.paths import ROOT

FOLDERS = ("coupling_lib", "companion", "book", "notebooks", "workflow", "benchmarks")
EVIL = "</svg></text><script>alert(1)</script><img src=x onerror='alert(2)'>\"`$$"

# -- weights

PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "flax_model.msgpack", "tf_model.h5")
REFUSED = dict.fromkeys(PICKLES, "no model.safetensors; pickled weights, which can run")
REFUSED |= {"model.safetensors": "damaged or truncated", "weights.gguf": "is no GGUF file"}


class Trap:
    """What runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize(("name", "message"), REFUSED.items(), ids=REFUSED)
def test_pickled_weights_are_refused_and_never_run(tmp_path, name, message):
    folder, marker = tmp_path / "model", tmp_path / "ran"
    tiny.save_llama(folder)
    (folder / "model.safetensors").unlink()
    for write in (pickle.dump, torch.save):
        with (folder / name).open("wb") as file:
            write({"weight": Trap(marker)}, file)
        refused(ModelUnavailableError, message, cl.load_model, folder, device="cpu")
    assert not marker.exists()


# -- code

# A reader of CIFAR-10's own files that makes arrays and refuses to find anything else by its name
# (tests/coupling_lib/inputs/test_labelled_images.py).
ONE_READER = {
    ("coupling_lib/inputs/labelled_images.py", "import of pickle"),
    # Lenses of other programs, as tensors alone; what else they hold is refused unopened
    # (tests/coupling_lib/store/test_lens_files.py).
    ("coupling_lib/store/lens_files.py", "import of pickle"),
    ("coupling_lib/store/lens_files.py", "torch.load"),
}
RUNNING = {"eval", "exec", "compile", "__import__", "torch.load", "torch.hub.load", "os.system", "os.popen"}
RUNNING |= {f"yaml.{name}" for name in ("load", "unsafe_load", "full_load")}
PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def dangers(tree: ast.AST) -> Iterator[str]:
    """Everything in a program that could run what it was given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [part.name for part in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"import of {name}" for name in names if name.partition(".")[0] in PICKLING)
        pairs = [(word.arg, word.value) for word in getattr(node, "keywords", [])]
        if isinstance(node, ast.Dict):
            pairs += [(getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True)]
        given = [name for name, value in pairs if getattr(value, "value", None) is not False]
        yield from (f"{name} given" for name in given if name in ("trust_remote_code", "allow_pickle", "shell"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in RUNNING:
            yield ast.unparse(node.func)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_program_runs_what_it_is_given(folder):
    found = {
        (path.relative_to(ROOT).as_posix(), danger)
        for path in (ROOT / folder).rglob("*.py")
        for danger in dangers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == {known for known in ONE_READER if known[0].startswith(folder)}


def test_the_search_finds_what_it_looks_for():
    program = """
import pickle, os
from joblib import load
model.eval()
eval(text); torch.load(f); yaml.load(f); os.system(c); np.load(f, allow_pickle=True)
from_pretrained(x, trust_remote_code=True); safe = {"trust_remote_code": flag}; run(c, shell=True)
fine(trust_remote_code=False); yaml.safe_load(f)
"""
    given = ["allow_pickle given", "shell given", "trust_remote_code given", "trust_remote_code given"]
    expected = ["import of pickle", "import of joblib", "eval", "torch.load", "yaml.load", "os.system", *given]
    assert sorted(dangers(ast.parse(program))) == sorted(expected)


# -- pages


class Seen(HTMLParser):
    """The elements of a page, and every attribute that would run a script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements, self.handlers = set(), []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.handlers += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]


def test_figures_escape_names_and_prompts():
    data = xr.DataArray(np.ones(2), coords={"token": [EVIL, "b"]}, dims="token", name="value")
    shown = show(titled, data, name=EVIL, caption=EVIL, provenance=f"model {EVIL}", title=style.short_name(EVIL)).data
    page = Seen(shown)
    assert page.elements == {"style", "figure", "img", "figcaption", "a", "span"} and page.handlers == []
    assert "&lt;script&gt;" in shown and "<script" not in shown
    light, dark = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", shown)
    for picture in (light, dark):
        names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(base64.b64decode(picture)).iter()}
        assert "path" in names and not names & {"script", "foreignObject", "image", "a"}


def titled(data: xr.DataArray | None, title: str) -> Figure:
    figure = Figure()
    figure.subplots().set_title(title)
    return figure


def test_dollars_in_tokens_and_names_start_no_formula():
    figure = titled(None, style.short_name(r"organisation/$\evil$"))
    figure.axes[0].set_xticks([0], [tokens.token_label(r"$\frac{$")])
    assert style.save_svg(figure).startswith(b"<?xml")


def test_model_tables_escape_registry_entries():
    entry = next(entry for entry in entries() if entry.hub_id)
    strange = type(entry)(**vars(entry) | {"alias": EVIL, "hub_id": f"o/{EVIL}", "family": EVIL})
    row = pages.model_table([strange]).splitlines()[-1]
    outside = re.sub(r"`[^`]*`", "", row)  # what stands between backquotes is shown as it is
    assert row.count("`") == 2 and not re.search(r"[<>$]|\|.*script>", outside.replace("|", ""))
    assert pages.plain("nano-neox (1.5 B)") == "nano-neox (1.5 B)" and "<" not in pages.plain(EVIL)
    assert pages.model_table([entry]).splitlines()[-1].startswith(f"| `{entry.alias}` | [{entry.hub_id}](https://hugg")


# -- packages


def test_the_lock_lists_all_that_this_needs():
    # What is asked for needs more in turn: nothing of it that is installed here is left out.
    assert set(closure(requirements())) <= {one.name for one in lock()}


def test_what_is_guaranteed_names_tests_that_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) >= 7 and all((ROOT / name).is_file() for name in named)
