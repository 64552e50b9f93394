"""A sweep's configuration: what it becomes, and one line for each mistake in it."""

from __future__ import annotations

import json
import os
from itertools import pairwise

import forked
import pytest
import tiny
import yaml

import coupling_lib as cl
from workflow import settings
from workflow.settings import ConfigError, plan, read

LEAST = {"models": ["nano-neox"], "measures": {"depth": {"ks": [10]}}}


def with_(**changes) -> dict:
    return LEAST | changes


def test_shipped_example_plans_models_networks_and_figures():
    made = read(settings.ROOT / "workflow" / "config.yaml")
    jobs = made["jobs"].values()
    assert made["name"] == "example" and list(made["weights"]) == ["nano-neox", "nano-llama", "nano-neox-step1000"]
    assert [(job["weights"], job["untrained"], job["shards"]) for job in jobs] == [
        (name, state, 2) for name in made["weights"] for state in (False, True)
    ]
    assert {job["version"] for job in jobs} == {cl.measure_depth.version}
    figure = made["figures"]["depth-nano-neox-step1000-float32"]
    assert figure["parameters"] == {
        **{"model": "nano-neox", "revision": "step1000", "precision": "float32", "prompts": 6, "seed": 0},
        **{"k": 10, "others": ""},
    }
    assert figure["needs"] == [name for name, job in made["jobs"].items() if job["weights"] == "nano-neox-step1000"]
    assert made["book"] is True and json.loads(json.dumps(made)) == made


def test_jobs_are_named_by_what_they_measure_alone():
    (name,) = plan(LEAST, "x")["jobs"]
    assert list(plan(with_(gpu=2, memory="8GB", shards=3, book=True, figures={"depth": None}), "y")["jobs"]) == [name]
    others = [with_(prompts=5), with_(seed=1), with_(until=0.1), with_(measures={"depth": {"ks": [9]}})]
    others += [with_(precisions=["nf4"]), with_(untrained=[True]), with_(models=["nano-llama"])]
    assert len({label for other in others for label in plan(other, "x")["jobs"]} | {name}) == 8


def test_forming_or_a_new_version_makes_another_job(monkeypatch):
    plans = {formed: plan(with_(measures={"depth": {"ks": [10], "formed": formed}}), "x") for formed in (True, False)}
    assert [job["settings"]["formed"] for made in plans.values() for job in made["jobs"].values()] == [True, False]
    assert len({name for made in (*plans.values(), plan(LEAST, "x")) for name in made["jobs"]}) == 3
    (before,) = plan(LEAST, "x")["jobs"]
    monkeypatch.setattr(cl.measure_depth, "version", cl.measure_depth.version + 1)
    assert list(plan(LEAST, "x")["jobs"]) != [before]


def test_figures_of_formed_jacobians_refuse_unformed_sweeps():
    def planned(formed, notebook):
        return plan(with_(measures={"depth": {"ks": [10], "formed": formed}}, figures={notebook: None}), "x")

    for notebook in ("depth", "readings", "precision"):
        assert planned(True, notebook)["figures"]
        with pytest.raises(ConfigError, match=f"notebook {notebook} of figures asks for formed ones"):
            planned(False, notebook)
    assert planned(False, "spectra")["figures"]  # which asks for another measure


def test_models_may_be_aliases_ids_and_folders(tmp_path):
    tiny.save_llama(tmp_path / "m")
    names = ["llama3-8b", "organisation/a.model-1", "organisation/repo/file-Q4.gguf", str(tmp_path / "m")]
    weights = plan(with_(models=names), "x")["weights"]
    assert [model["model"] for model in weights.values()] == names
    assert all("/" not in label for label in weights) and len(weights) == 4


# Each list is ten times the one before it: a few lines, and thousands of millions of numbers to whoever writes them.
LAUGHS = ", ".join(["&a [1, 1]", *(f"&{y} [{', '.join(['*' + x] * 10)}]" for x, y in pairwise("abcdefghij"))]).encode()

BAD = [
    (None, "it holds None (NoneType); names with values were expected"),
    ([1], "it holds [1] (list); names with values were expected"),
    ({}, "models is missing; give a list of aliases"),
    ({"models": ["nano-neox"]}, "measures is missing; give measures with their settings"),
    (with_(model="nano-neox"), "'model' is unknown, did you mean 'models'?"),
    ({1: 2}, "it holds {1: 2} (dict)"),
    (with_(models="nano-neox"), "models is 'nano-neox' (str); expected a list of aliases"),
    (with_(models=[]), "models is [] (list)"),
    (with_(models=[3]), "models[0] is 3 (int); expected a name, or {model: name, revision: step1000}"),
    (with_(models=[None]), "models[0] is None (NoneType)"),
    (with_(models=["  "]), "models[0] is '  ' (str)"),
    (with_(models=[["nano-neox"]]), "models[0] is ['nano-neox'] (list)"),
    (with_(models=[{"model": "nano-neox", "step": 3}]), "models[0] is {'model': 'nano-neox', 'step': 3} (dict)"),
    (with_(models=["nano-nexo"]), "did you mean 'nano-neox'?"),
    (with_(models=["../../etc"]), "models[0] is '../../etc': no alias, no Hugging Face id and no folder with a conf"),
    (with_(models=["/etc"]), "models[0] is '/etc': no alias"),
    (with_(models=["a/../b"]), "models[0] is 'a/../b': no alias"),
    (with_(models=["$(touch x)"]), "models[0] is '$(touch x)': no alias"),
    (with_(models=["nano-neox; ls"]), "no alias, no Hugging Face id"),
    (with_(models=[{"model": "nano-neox", "revision": 1000}]), "models[0] has revision 1000 (int); expected a branch"),
    (with_(models=[{"model": "nano-neox", "revision": "step7"}]), "models[0]: 'nano-neox' has no revision 'step7'"),
    (with_(precisions="float32"), "precisions is 'float32' (str); expected a list of one of float32"),
    (with_(precisions=["float31"]), "precisions is ['float31'] (list)"),
    (with_(precisions=[]), "precisions is [] (list)"),
    (with_(untrained="yes"), "untrained is 'yes' (str); expected a list of true or false"),
    (with_(untrained=[1]), "untrained is [1] (list)"),
    (with_(prompts=0), "prompts is 0 (int); expected a whole number of embedded prompts from 1"),
    (with_(prompts=1.5), "prompts is 1.5 (float)"),
    (with_(prompts=True), "prompts is True (bool)"),
    (with_(prompts=["a"]), "prompts is ['a'] (list)"),
    (with_(seed=-1), "seed is -1 (int); expected a whole number from 0"),
    (with_(seed="0"), "seed is '0' (str)"),
    (with_(shards=0), "shards is 0 (int); expected a whole number from 1"),
    (with_(shards="2"), "shards is '2' (str)"),
    (with_(until=0), "until is 0 (int); expected a number above 0"),
    (with_(until="0.01"), "until is '0.01' (str)"),
    (with_(until=float("nan")), "until is nan (float)"),
    (with_(until=0.01, shards=2), "until is 0.01, which needs all prompts in one job, and shards is 2"),
    (
        with_(until=0.01, measures={"spectra": {"k": 4}}),
        "until needs to know of which number, and only depth has a main",
    ),
    (with_(of=3), "of is 3 (int); expected the name of a variable"),
    (with_(measures=["depth"]), "measures is ['depth'] (list); expected measures with their settings"),
    (with_(measures={}), "measures is {} (dict)"),
    (with_(measures={"deth": {}}), "measures has 'deth', did you mean 'depth'?; choose from depth, tokens"),
    (with_(measures={"../../etc": {}}), "measures has '../../etc'; choose from depth"),
    (with_(measures={"__import__": {}}), "measures has '__import__'; choose from depth"),
    (with_(measures={"depth": [10]}), "measures: depth is [10] (list); expected settings such as {k: 10}"),
    (with_(measures={"depth": {"k": 10}}), "measures: depth has no setting 'k', did you mean 'ks'?; it takes ks"),
    (with_(measures={"depth": {"ks": 10}}), "measures: depth has ks = 10 (int); expected a list of whole numbers"),
    (with_(measures={"depth": {"ks": [0]}}), "measures: depth has k = 0; expected a whole number from 1 to the width"),
    (with_(measures={"depth": {"ks": [97]}}), "has k = 97; expected a whole number from 1 to 96, the width of nano-ne"),
    (with_(measures={"depth": {"ks": []}}), "measures: depth has ks = [] (list)"),
    (with_(measures={"depth": {"token": 1.5}}), "measures: depth has token = 1.5 (float); expected a whole number"),
    (with_(measures={"depth": {"formed": "yes"}}), "depth has formed = 'yes' (str); expected true or false"),
    (with_(measures={"depth": {"formed": 1}}), "measures: depth has formed = 1 (int); expected true or false"),
    (
        with_(measures={"depth": {"formed": False}}, figures={"depth": {"k": 10}}),
        "measures: depth has formed = False (bool), and notebook depth of figures asks for formed ones; leave one of ",
    ),
    (with_(measures={"depth": {"formed": True}}, figures={"../depth": None}), "figures has '../depth'"),
    (with_(measures={"depth": {"boundary": 3}}), "measures: depth has boundary = 3 (int); expected a text"),
    (
        with_(measures={"perturbation": {"noise": ["a"]}}),
        "perturbation has noise = ['a'] (list); expected a list of nu",
    ),
    (with_(measures={"tokens": {}}), "measures: tokens needs block; add it to its settings"),
    (with_(figures=["depth"]), "figures is ['depth'] (list); expected notebooks with their parameters"),
    (with_(figures={"deth": {}}), "figures has 'deth', did you mean 'depth'?"),
    (with_(figures={"../depth": {}}), "figures has '../depth', did you mean 'depth'?"),
    (with_(figures={"depth": 3}), "figures: depth is 3 (int); expected parameters such as {k: 10}"),
    (
        with_(figures={"depth": {"kk": 3}}),
        "figures: depth has no 'kk' of its own, did you mean 'k'?; it takes k, blocks",
    ),
    (with_(figures={"depth": {"model": "x"}}), "figures: depth has no 'model' of its own"),
    (with_(figures={"depth": {"k": "1; import os"}}), "figures: depth has k = '1; import os' (str); expected a whole"),
    (with_(book="yes"), "book is 'yes' (str); expected true or false"),
    (with_(gpu=-1), "gpu is -1 (int); expected a whole number of cards"),
    (with_(gpu=0.5), "gpu is 0.5 (float)"),
    (with_(memory="lots"), "memory is 'lots' (str); expected an amount of memory with its unit"),
    (with_(flops=0), "flops is 0 (int); expected floating-point operations a second"),
    (with_(name="../../etc"), "name is '../../etc' (str); expected letters, digits"),
    (with_(name="a b"), "name is 'a b' (str)"),
    (with_(name=7), "name is 7 (int)"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=range(len(BAD)))
def test_each_mistake_is_one_line(given, message, tmp_path):
    with pytest.raises(ConfigError) as refused:
        plan(given, "x")
    assert message in str(refused.value) and "\n" not in str(refused.value)
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^sweep\.yaml: "):
        read(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"models: [", "is no YAML that a sweep reads"),
        (b"models: !!python/object/apply:os.system ['touch was-here']", "could not determine a constructor"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"a: \x07", "is no YAML that a sweep reads"),
        (b"", "it holds None"),
        (b"- " * 5000, "sweep reads"),
        (b"shards: " + b"9" * 5000, "is no YAML that a sweep reads"),
        (b"x" * 1000 + b": 1", "(1,002 characters) is unknown"),
        (b"models: [nano-neox]\nmeasures: {depth: {ks: [" + LAUGHS + b"]}}", "depth has ks = [[1, 1], [[1, 1]"),
    ],
)
def test_invalid_configuration_is_refused_and_runs_nothing(content, message, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read(file)
    assert message in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 600
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "absent.yaml")
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
