"""A sweep's configuration: what it becomes, and one line for each mistake in it."""

import json
import os
from itertools import pairwise

import forked
import pytest
import yaml
from refusals import refused

import coupling_lib as cl
from workflow import settings
from workflow.settings import ConfigError, plan, read

LEAST = {"models": ["nano-neox"], "measures": {"depth": {"ks": [10]}}}


def planned(**changes) -> dict:
    return plan(LEAST | changes, "x")


def of_depth(**changes) -> dict:
    return {"measures": {"depth": {"ks": [10]} | changes}}


def row(name: str, value: object, expected: str) -> tuple[dict, str]:
    return LEAST | {name: value}, f"{name} is {value!r} ({type(value).__name__}); expected {expected}"


def row_of_depth(name: str, value: object, expected: str) -> tuple[dict, str]:
    seen = f"{value!r} ({type(value).__name__})"
    return LEAST | of_depth(**{name: value}), f"measures: depth has {name} = {seen}; expected {expected}"


def test_shipped_example_plans_models_networks_and_figures():
    made = read(settings.ROOT / "workflow" / "config.yaml")
    assert made["name"] == "example" and list(made["weights"]) == ["nano-neox", "nano-llama", "nano-neox-step1000"]
    assert [(job["weights"], job["untrained"], job["shards"], job["version"]) for job in made["jobs"].values()] == [
        (name, state, 2, cl.measure_depth.version) for name in made["weights"] for state in (False, True)
    ]
    figure = made["figures"]["depth-nano-neox-step1000-float32"]
    given = {"model": "nano-neox", "revision": "step1000", "precision": "float32", "prompts": 6, "seed": 0}
    assert figure["parameters"] == given | {"k": 10, "others": ""}
    assert figure["needs"] == [name for name, job in made["jobs"].items() if job["weights"] == "nano-neox-step1000"]
    assert made["book"] is True and json.loads(json.dumps(made)) == made


def test_jobs_are_named_by_what_they_measure_alone(monkeypatch):
    (name,) = planned()["jobs"]
    assert list(planned(name="y", gpu=2, memory="8GB", shards=3, book=True, figures={"depth": None})["jobs"]) == [name]
    others = [dict(prompts=5), dict(seed=1), dict(until=0.1), dict(precisions=["nf4"]), dict(untrained=[True])]
    others += [dict(models=["nano-llama"]), of_depth(ks=[9]), of_depth(formed=True), of_depth(formed=False)]
    assert len({label for other in others for label in planned(**other)["jobs"]} | {name}) == 10
    monkeypatch.setattr(cl.measure_depth, "version", cl.measure_depth.version + 1)
    assert list(planned()["jobs"]) != [name]


def test_figures_of_formed_jacobians_refuse_unformed_sweeps():
    for notebook in ("depth", "readings", "precision"):
        made = planned(**of_depth(formed=True), figures={notebook: None})
        assert made["figures"] and [job["settings"]["formed"] for job in made["jobs"].values()] == [True]
        asked = LEAST | of_depth(formed=False) | {"figures": {notebook: None}}
        refused(ConfigError, f"notebook {notebook} of figures asks for formed ones", plan, asked, "x")
    made = planned(**of_depth(formed=False), figures={"spectra": None})  # which asks for another measure
    assert made["figures"] and [job["settings"]["formed"] for job in made["jobs"].values()] == [False]


# Each list is ten times the one before it: a few lines, and thousands of millions of numbers to whoever writes them.
LAUGHS = ", ".join(["&a [1, 1]", *(f"&{y} [{', '.join(['*' + x] * 10)}]" for x, y in pairwise("abcdefghij"))]).encode()

# Values that a name does not take, and what it takes.
VALUES = {
    "models": (["nano-neox", []], "a list of aliases"),
    "precisions": (["float32", ["float31"], []], "a list of one of float32"),
    "untrained": (["yes", [1]], "a list of true or false"),
    "prompts": ([0, 1.5, True, ["a"]], "a whole number of embedded prompts from 1"),
    "seed": ([-1, "0"], "a whole number from 0"),
    "shards": ([0, "2"], "a whole number from 1"),
    "until": ([0, "0.01", float("nan")], "a number above 0"),
    "of": ([3], "the name of a variable"),
    "measures": ([["depth"], {}], "measures with their settings"),
    "figures": ([["depth"]], "notebooks with their parameters"),
    "book": (["yes"], "true or false"),
    "gpu": ([-1, 0.5], "a whole number of cards"),
    "memory": (["lots"], "an amount of memory with its unit"),
    "flops": ([0], "floating-point operations a second"),
    "name": (["../../etc", "a b", 7], "letters, digits"),
}
OF_DEPTH = {
    "ks": ([10, []], "a list of whole numbers"),
    "token": ([1.5], "a whole number"),
    "formed": (["yes", 1], "true or false"),
    "boundary": ([3], "a text"),
}
UNKNOWN = "no alias, no Hugging Face id and no folder with a conf"
MODELS = [
    (3, " is 3 (int); expected a name, or {model: name, revision: step1000}"),
    (None, " is None (NoneType)"),
    ("  ", " is '  ' (str)"),
    (["nano-neox"], " is ['nano-neox'] (list)"),
    ({"model": "nano-neox", "step": 3}, " is {'model': 'nano-neox', 'step': 3} (dict)"),
    ("nano-nexo", f" is 'nano-nexo': {UNKNOWN}ig.json; did you mean 'nano-neox'?"),
    *((name, f" is {name!r}: {UNKNOWN}") for name in ("../../etc", "/etc", "a/../b", "$(touch x)", "nano-neox; ls")),
    ({"model": "nano-neox", "revision": 1000}, " has revision 1000 (int); expected a branch"),
    ({"model": "nano-neox", "revision": "step7"}, ": 'nano-neox' has no revision 'step7'"),
]
MEASURES = [
    ({"deth": {}}, " has 'deth', did you mean 'depth'?; choose from depth, tokens"),
    ({"../../etc": {}}, " has '../../etc'; choose from depth"),
    ({"__import__": {}}, " has '__import__'; choose from depth"),
    ({"depth": [10]}, ": depth is [10] (list); expected settings such as {k: 10}"),
    ({"depth": {"k": 10}}, ": depth has no setting 'k', did you mean 'ks'?; it takes ks"),
    ({"depth": {"ks": [0]}}, ": depth has k = 0; expected a whole number from 1 to the width"),
    ({"depth": {"ks": [97]}}, ": depth has k = 97; expected a whole number from 1 to 96, the width of nano-neox"),
    ({"perturbation": {"noise": ["a"]}}, ": perturbation has noise = ['a'] (list); expected a list of numbers"),
    ({"tokens": {}}, ": tokens needs block; add it to its settings"),
]
FIGURES = [
    ({"deth": {}}, " has 'deth', did you mean 'depth'?"),
    ({"../depth": {}}, " has '../depth', did you mean 'depth'?"),
    ({"depth": 3}, ": depth is 3 (int); expected parameters such as {k: 10}"),
    ({"depth": {"kk": 3}}, ": depth has no 'kk' of its own, did you mean 'k'?; it takes k, blocks"),
    ({"depth": {"model": "x"}}, ": depth has no 'model' of its own"),
    ({"depth": {"k": "1; import os"}}, ": depth has k = '1; import os' (str); expected a whole"),
]
FORMED = "measures: depth has formed = False (bool), and notebook depth of figures asks for formed ones; leave one of "
BAD = [
    (None, "it holds None (NoneType); names with values were expected"),
    ([1], "it holds [1] (list); names with values were expected"),
    ({1: 2}, "it holds {1: 2} (dict)"),
    ({}, "models is missing; give a list of aliases"),
    ({"models": ["nano-neox"]}, "measures is missing; give measures with their settings"),
    (LEAST | {"model": "nano-neox"}, "'model' is unknown, did you mean 'models'?"),
    (LEAST | dict(until=0.01, shards=2), "until is 0.01, which needs all prompts in one job, and shards is 2"),
    (LEAST | dict(until=0.01, measures={"spectra": {"k": 4}}), "until needs to know of which number, and only depth"),
    (LEAST | of_depth(formed=False) | {"figures": {"depth": {"k": 10}}}, FORMED),
    (LEAST | of_depth(formed=True) | {"figures": {"../depth": None}}, "figures has '../depth'"),
    *((LEAST | {"models": [model]}, f"models[0]{message}") for model, message in MODELS),
    *((LEAST | {"measures": measures}, f"measures{message}") for measures, message in MEASURES),
    *((LEAST | {"figures": figures}, f"figures{message}") for figures, message in FIGURES),
    *(row(name, value, expected) for name, (values, expected) in VALUES.items() for value in values),
    *(row_of_depth(name, value, expected) for name, (values, expected) in OF_DEPTH.items() for value in values),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=range(len(BAD)))
def test_each_mistake_is_one_line(given, message, tmp_path):
    assert message in refused(ConfigError, "", plan, given, "x")
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    refused(ConfigError, r"^sweep\.yaml: ", read, file)


CONTENTS = [
    (b"models: [", "is no YAML that a sweep reads"),
    (b"models: !!python/object/apply:os.system ['touch was-here']", "could not determine a constructor"),
    (b"\xff\xfe\x00", "cannot be read"),
    (b"a: \x07", "is no YAML that a sweep reads"),
    (b"", "it holds None"),
    (b"- " * 5000, "sweep reads"),
    (b"shards: " + b"9" * 5000, "is no YAML that a sweep reads"),
    (b"x" * 1000 + b": 1", "(1,002 characters) is unknown"),
    (b"models: [nano-neox]\nmeasures: {depth: {ks: [" + LAUGHS + b"]}}", "depth has ks = [[1, 1], [[1, 1]"),
]


@pytest.mark.parametrize(("content", "message"), CONTENTS)
def test_invalid_configuration_is_refused_and_runs_nothing(content, message, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    line = refused(ConfigError, "", read, file)
    assert message in line and len(line) < 600
    refused(ConfigError, "cannot be read", read, tmp_path / "absent.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml"]


@pytest.mark.thorough
def test_command_reports_a_mistake_in_one_line(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("models: [../../etc]\nmeasures: {depth: }\n")
    code = "import runpy; runpy.run_module('workflow.plan', run_name='__main__')"
    run = forked.run(code, os.environ | {"PYTHONPATH": str(settings.ROOT)}, str(file), cwd=settings.ROOT)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.splitlines()[-1].startswith("error: bad.yaml: models[0] is '../../etc'")
    assert "Traceback" not in run.stderr and len(run.stderr.splitlines()) == 1
