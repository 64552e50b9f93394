"""Names that are made of users' paths: what a sweep's command lines call models, whatever a folder is called."""

import json
import re
import runpy
import shlex
import string
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import settings as bounds
from hypothesis import strategies as st

from workflow import measure, records, settings

SAFE = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
HOSTILE = ["-", "--shard", "-h", ".", " ", "'", '"', "$(x)", "`", ";", "é", "模", "#", "&", "\\", "*", "%", "=", ":"]
PART = st.lists(st.sampled_from(HOSTILE) | st.text("ab.- _'é", max_size=9), min_size=1, max_size=9).map("".join)


@st.composite
def folders(draw) -> list[str]:
    """Draw some folders' names, and such that differ from them at one end of 300 characters alone."""
    names = draw(st.lists(PART, min_size=1, max_size=3))
    dashes = draw(st.integers(50, 70))
    long = draw(PART) + "/" + "m" * 240 + "/" + "-" * (dashes // 2) + draw(st.sampled_from(["x", "-", "."])) * dashes
    ends = draw(st.sampled_from(["-", "a", ".", "é", " "])), draw(st.sampled_from(["b", "'", "_"]))
    names += [end + long for end in ends] + [long + end for end in ends]
    return [name for name in names if name.strip("./")]


class _AsSnakemake(string.Formatter):
    """What Snakemake's own formatting does with a command of the Snakefile."""

    def format_field(self, value: Any, spec: str) -> str:
        return shlex.quote(str(value)) if spec == "q" else format(value, spec)


class Commands:
    """The Snakefile's commands, made as it makes them, the plan's file that they name, and what each program takes."""

    def __init__(self, folder: Path) -> None:
        plan = records.write(folder / "plan.json", {"root": "/r", "store": "/s 's"})
        text = (settings.ROOT / "workflow" / "Snakefile").read_text(encoding="utf-8")
        known = {"config": {"plan": str(plan)}, "workflow": SimpleNamespace(basedir=str(settings.ROOT / "workflow"))}
        self.known: dict[str, Any] = known | {"json": json, "shlex": shlex, "Path": Path}
        exec(compile(text[text.index("PLAN_FILE =") : text.index("\nlocalrules:")], "Snakefile", "exec"), self.known)
        found = re.findall(r"^rule (\w+):\n(?:(?!^rule ).)*?    shell:\n(.*?)(?=\n\n|\Z)", text, re.S | re.M)
        self.rules = {rule: eval(f"({shell})", self.known) for rule, shell in found}
        self.options: dict[str, dict[str, str | None]] = {}
        with pytest.MonkeyPatch.context() as changed, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what is imported already is run once more
            changed.setattr(records, "run_command", lambda _, prog, **taken: self.options.update({prog: taken}) or 0)
            for name in ("fetch", "measure", "merge", "pages"):
                with pytest.raises(SystemExit):
                    runpy.run_module(f"workflow.{name}", run_name="__main__")

    def understood(self, rule: str, **wildcards: str) -> dict[str, str]:
        """What a program understands of a rule's line: split by a shell, parsed by the program, without the plan."""
        values = self.known | {"wildcards": SimpleNamespace(**wildcards), "threads": 1}
        words = shlex.split(_AsSnakemake().vformat(self.rules[rule], (), values))
        assert words[:3] == ["cd", str(settings.ROOT), "&&"] and "COUPLING_RESULTS=/s 's" in words
        module, *arguments = words[words.index("-m") + 1 :]
        name, seen = module.removeprefix("workflow."), {}
        assert records.run_command(lambda **given: seen.update(given) or "", name, arguments, **self.options[name]) == 0
        assert seen.pop("plan") == self.known["PLAN_FILE"]
        return seen


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Commands:
    return Commands(tmp_path_factory.mktemp("-a 'b\" c"))


def planned(names: list) -> dict[str, Any]:
    """A plan of models in folders of these names."""
    asked = {"models": names, "measures": {"depth": {"ks": [4]}}, "figures": {"depth": {"k": 4}}, "untrained": [True]}
    return settings.plan(asked, "x")


_read_text = Path.read_text


def _shape_or_text(path: Path, *how: Any, **more: Any) -> str:
    return "{}" if path.name == "config.json" else _read_text(path, *how, **more)


@bounds(max_examples=100, deadline=None)
@given(st.data())
def test_any_folder_name_reaches_its_own_command(commands, data):
    places = ["/" + name for name in dict.fromkeys(data.draw(folders()))]
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(Path, "is_file", lambda path: path.name == "config.json")
        changed.setattr(Path, "read_text", _shape_or_text)
        made = planned(places)
    different = {str(Path(place).resolve()) for place in places}
    assert {model["model"] for model in made["weights"].values()} == different
    assert len(made["jobs"]) == len(made["figures"]) == len(made["weights"])
    for label in (*made["weights"], *made["jobs"], *made["figures"]):
        assert SAFE.fullmatch(label) and len(label) < 150
    for label in made["weights"]:
        assert commands.understood("fetch", weights=label) == {"weights": label}
    for label in made["jobs"]:
        assert commands.understood("measure", job=label, part="2", shards="3") == {"job": label, "shard": "2/3"}
        assert commands.understood("merge", job=label) == {"job": label}


@pytest.mark.parametrize(
    "name", ["-h", "--", "a b", "it's", "é" * 100, "trailing ", "m-" + "x" * 29 + "-" * 40 + "x" * 45]
)
def test_models_in_oddly_named_folders_are_measured(name, tmp_path, capsys):
    tiny.save_llama(tmp_path / name)
    asked = {"models": [str(tmp_path / name)], "measures": {"depth": {"ks": [4]}}, "prompts": 1}
    made = settings.plan(asked, "x") | {"root": str(tmp_path / "r"), "store": str(tmp_path / "s")}
    (job,) = made["jobs"]
    file = records.write(tmp_path / "plan.json", made)
    given = ["--shard", "1/1", "--", str(file), job]
    assert records.run_command(measure._run, "measure", given, plan=None, job=None, shard="1/1") == 0
    assert capsys.readouterr().out.endswith(f"{job}, shard 1/1: 1 prompts are in the store\n")
    (stored,) = (tmp_path / "s").iterdir()
    assert SAFE.fullmatch(stored.name)


NAMES = {
    ("nano-neox", None): "nano-neox",
    ("nano-neox", "step1000"): "nano-neox-step1000",
    ("organisation/a.model-1", None): "organisation-a.model-1-21af56",
    ("organisation/repo/file-Q4.gguf", None): "organisation-repo-file-Q4.gguf-ee4f03",
    ("EleutherAI/pythia-160m", "step1000"): "EleutherAI-pythia-160m-step1000-57c6dc",
    ("/srv/someone/models/my model", None): "srv-someone-models-my-model-bdbdba",
    # Those that were no names.
    ("/home/" + "x" * 30 + "-" + "y" * 59, None): "y" * 59 + "-4b2945",
    ("/模", None): "model-0679f7",
}


def test_names_of_models_are_what_they_were():
    assert {one: settings._slug({"model": one[0], "revision": one[1]}) for one in NAMES} == NAMES


def test_each_model_of_a_plan_has_its_name():
    places = ["org/a-b", "org/a", "nano-neox", "llama3-8b", "org/repo/file-Q4.gguf"]
    made = planned([*places, {"model": "org/a", "revision": "b"}, "org/a-b"])
    assert [model["model"] for model in made["weights"].values()] == [*places, "org/a"]
    assert len(made["jobs"]) == len(made["figures"]) == 6 and {"nano-neox", "llama3-8b"} <= made["weights"].keys()
    assert all(SAFE.fullmatch(label) for label in made["weights"])
    assert {job["weights"] for job in made["jobs"].values()} == made["weights"].keys()
