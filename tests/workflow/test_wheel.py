"""The wheel, installed alone and away from the checkout, beside the lowest and the newest of what it may stand on.

What is small is really installed, from the package index. What is large (torch, transformers and what they need) is
lent by this environment, as far as the library asks for it: an extra is not there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import forked
import numpy as np
import pytest
from installed import PROJECT, closure
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from coupling_lib.paths import ROOT

LIGHT = ("numpy", "pandas", "xarray", "scipy", "scikit-learn", "pillow", "psutil", "tqdm")
ASKED = {Requirement(line).name: line for line in PROJECT["project"]["dependencies"]}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

MEASURE = """
import json
from importlib.metadata import version
import coupling_lib as cl
from coupling_lib.datasets.statistics import mean_interval

model, texts = cl.load_model("nano-neox", device="cpu"), [p.text for p in cl.load_prompts("embedded", 1)]
depth, paths = cl.measure_depth(model, texts, ks=(3, 10)), cl.measure_trajectories(model, texts)
shown = {name: depth[name].values.tolist() for name in ("normalized_miscoupling", "mismatch", "singular_values")}
shown |= {name: paths[name].values.tolist() for name in ("line_shape_score", "norm")}
shown["interval"] = [float(value) for value in mean_interval([1.0, 2.0, 4.0])]
print(json.dumps({"file": cl.__file__, "versions": {name: version(name) for name in NAMES}, "values": shown}))
""".replace("NAMES", repr(LIGHT))

REFUSED = """
from pathlib import Path
import coupling_lib as cl
from coupling_lib.errors import CouplingError

def figures():
    import companion.figures

Path("some.gguf").write_bytes(b"GGUF and more")
for run in (
    lambda: cl.load_model("nano-llama"),
    lambda: cl.load_model("nano-neox", revision="step316"),
    lambda: cl.measure_emergence("nano-neox", ["a"], (0, 316)),
    lambda: cl.load_model("nano-neox", precision="nf4"),
    lambda: cl.load_model("some.gguf"),
    figures,
):
    try:
        run()
        print("nothing was refused")
    except CouplingError as error:
        print(error)
"""
IN_A_CHECKOUT = "a checkout of the project has it in data/"
MESSAGES = [
    rf"the embedded model 'nano-llama' is not in .*nano-llama; {IN_A_CHECKOUT}checkpoints/nano-llama: pass that folder",
    rf".*choose one of step0, step10000; {IN_A_CHECKOUT}checkpoints/nano-neox/step316: pass that folder",
    rf".*'nano-neox' has no step 316; choose from 0, 10000; {IN_A_CHECKOUT}checkpoints/nano-neox/step316: pass that .*",
    r"precision 'nf4' needs .* bitsandbytes, which is not installed; run: pip install 'coupling_lib\[quantised\]'",
    r"the GGUF file 'some.gguf' needs .* gguf, which is not installed; run: pip install 'coupling_lib\[gguf\]'",
    r"drawing figures needs .* matplotlib, which is not installed; run: pip install 'coupling_lib\[notebooks\]'",
]


def run(command: list[str], folder: Path) -> str:
    """Run a program as a user's shell would, and return what it prints."""
    usual = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COUPLING_RESULTS")}
    how = {"cwd": folder, "env": usual | {"OMP_NUM_THREADS": "1"}}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    return ended.stdout


def from_the_index(arguments: list[str], folder: Path) -> None:
    """Run pip; where no package index is reached, a user's test is left out, and that of a check fails."""
    try:
        run([*PIP, *arguments], folder)
    except AssertionError as error:
        if "CI" in os.environ or not re.search(r"No matching distribution found|connection", str(error), re.IGNORECASE):
            raise
        pytest.skip("the package index is not reached")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    # From a copy: setuptools leaves folders behind where it builds.
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("coupling_lib", "companion", "data"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    from_the_index(["wheel", "--no-deps", "--wheel-dir", str(out), str(copy)], copy)
    (made,) = out.iterdir()
    return made


def lend(folder: Path) -> Path:
    """Link what is installed here and large, and all that it needs, into a folder."""
    folder.mkdir()
    large = closure(line for name, line in ASKED.items() if name not in LIGHT)
    for package in large.values():
        for top in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(package.locate_file(top))
    return folder


@pytest.fixture(scope="module", params=["lowest", "newest"])
def environment(request, wheel, tmp_path_factory) -> tuple[str, Path]:
    place = tmp_path_factory.mktemp(request.param)
    venv.create(place / "env", symlinks=True)
    python = place / "env" / "bin" / "python"
    lines = [ASKED[name] for name in LIGHT]
    small = [line.replace(">=", "==") for line in lines] if request.param == "lowest" else lines
    # Before anything is lent, so that pip finds nothing to take away.
    for arguments in (small, ["--no-deps", str(wheel)]):
        from_the_index(["--python", str(python), "install", "--no-compile", *arguments], place)
    (site,) = (place / "env" / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{lend(place / 'lent')}\n")
    return request.param, python


def test_wheel_is_small_and_holds_one_checkpoint(wheel):
    assert wheel.stat().st_size < 5_250_000
    listed = run([sys.executable, "-m", "zipfile", "-l", str(wheel)], wheel.parent)
    assert re.findall(r"data/(\S+\.safetensors)", listed) == ["checkpoints/nano-neox/model.safetensors"]
    assert {"models.csv", "suite.csv", "prompts/embedded.jsonl"} <= set(re.findall(r"coupling_lib/data/(\S+)", listed))
    assert "companion/figures/depth.py" in listed and "measurements/" not in listed


@pytest.fixture(scope="module")
def of_the_checkout(tmp_path_factory) -> dict:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return json.loads(forked.run(MEASURE, environment, cwd=tmp_path_factory.mktemp("here")).stdout)


@pytest.mark.thorough
def test_wheel_measures_the_same_as_the_checkout(environment, of_the_checkout, tmp_path):
    (which, python), here = environment, of_the_checkout
    there = json.loads(run([str(python), "-c", MEASURE], tmp_path))
    assert Path(here["file"]).is_relative_to(ROOT) and Path(there["file"]).is_relative_to(python.parents[1])
    lowest = {name: SpecifierSet(ASKED[name].removeprefix(name).replace(">=", "==")) for name in LIGHT}
    assert which == "newest" or all(there["versions"][name] in exact for name, exact in lowest.items())
    for name, values in here["values"].items():
        np.testing.assert_allclose(there["values"][name], values, rtol=2e-5, atol=2e-6, err_msg=name)
    run([*PIP, "--python", str(python), "check"], tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("environment", ["lowest"], indirect=True)
def test_wheel_names_what_it_lacks_in_one_line(environment, tmp_path):
    lines = run([str(environment[1]), "-c", REFUSED], tmp_path).splitlines()
    assert [line for pattern, line in zip(MESSAGES, lines, strict=True) if not re.fullmatch(pattern, line)] == []
