"""Notebook parameters: whatever papermill can inject is either right or refused by name, in one line."""

import ast
import math
from types import SimpleNamespace

import numpy as np
import pytest
from bad_parameters import RIGHT
from refusals import refused

from companion.notebook import choices, parameters
from coupling_lib.errors import ParameterError
from coupling_lib.paths import ROOT

NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.py") if path.with_suffix(".ipynb").exists())


def sized(n_blocks, d_model=96, name="model"):
    return SimpleNamespace(n_blocks=n_blocks, d_model=d_model, name=name)


def check(declared=parameters.COMMON, **changes):
    return parameters.check_parameters(RIGHT | changes if declared == parameters.COMMON else changes, declared)


def refusal(declared=parameters.COMMON, **changes):
    return refused(ParameterError, "", check, declared, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "meta-llama/Meta-Llama-3-8B", "revision": "main"},
        {"precision": "nf4"},
        *({"memory": memory} for memory in ("8GB", "1.5 GiB")),
        {"prompts": "gsm8k:50"},
        {"prompts": 1, "k": 1, "seed": 123456789},
        *({"blocks": blocks} for blocks in ("3-5,9", 4)),
        {"token": 0},
        {"np": np, "_": 3, "__name__": "x", "exit": check, "array": np.zeros(2)},  # no plain values
        {"both": {"trained": np.zeros(1)}, "p": SimpleNamespace(), "texts": [SimpleNamespace()]},
    ],
)
def test_right_parameters_are_returned_as_given(changes):
    assert vars(check(**changes)) == RIGHT | {name: value for name, value in changes.items() if name in RIGHT}


# What papermill makes of -p NAME true, 10x, 1e1, nan, True, None and the like.
@pytest.mark.parametrize("value", ["true", "false", "10x", 10.0, math.nan, math.inf, True, None, "", [1], {"a": 1}])
@pytest.mark.parametrize("name", ["k", "seed", "token"])
def test_whole_number_of_another_type_is_refused(name, value):
    message = refusal(**{name: value})
    assert message.startswith(f"parameter {name!r} is {value!r} ({type(value).__name__}); it must be a whole number")
    assert f"; pass -p {name} " in message


@pytest.mark.parametrize("name", ["model", "precision", "memory", "revision", "prompts", "blocks"])
@pytest.mark.parametrize("value", ["false", "None", "null", 1.5, False, None])
def test_text_of_another_type_is_refused(name, value):
    assert refusal(**{name: value}).startswith(f"parameter {name!r} is {value!r} ({type(value).__name__})")


MIDDLE = "it must be a training step, or 0 for the most coupled; pass -p middle 4000"
CENTRES = "it must be one to five blocks counted from 1, separated by commas, or empty"
OUT_OF_RANGE = {
    "'k' is 0 (int); it must be a whole number from 1 to the width of the model; pass -p k 10": 0,
    "'prompts' is 0 (int); it must be a whole number of embedded prompts from 1": 0,
    "'seed' is -1 (int); it must be a whole number from 0; pass -p seed 0": -1,
    "'precision' is 'fp32' (str); it must be one of float32, bfloat16, float16, nf4, fp4, int8; "
    "pass -p precision float32": "fp32",
    "'model' is ' ' (str)": " ",
    "'revision' is 1000 (int)": 1000,
    "'memory' is 8 (int); it must be an amount of memory with its unit, or empty for what is free; "
    "pass -p memory 8GB": 8,
    "'memory' is '8 gigs' (str)": "8 gigs",
    f"'middle' is '4000 ' (str); {MIDDLE}": "4000 ",
    f"'middle' is -1 (int); {MIDDLE}": -1,
    "'turn' is -2 (int); it must be a block counted from 1, 0 for no line, or -1": -2,
    f"'centres' is '0,3' (str); {CENTRES}": "0,3",
    f"'centres' is '1,2,3,4,5,6' (str); {CENTRES}; pass -p centres 6,16,31": "1,2,3,4,5,6",
    f"'centres' is 'last' (str); {CENTRES}": "last",
}


@pytest.mark.parametrize(("expected", "value"), OUT_OF_RANGE.items(), ids=[text[:20] for text in OUT_OF_RANGE])
def test_value_out_of_range_is_refused(expected, value):
    name = expected.split("'")[1]
    assert refusal((name,), **{name: value}).startswith(f"parameter {expected}")


@pytest.mark.parametrize("blocks", ["0-3", "5-3", "1,5-3", "1,1", "1-", "-2", "a", "1..3", "1-3-5", " ", "²", 0, -1])
def test_blocks_that_cannot_be_read_are_refused(blocks):
    assert f"parameter 'blocks' is {blocks!r}" in refusal(blocks=blocks)


def test_unknown_and_missing_names_are_refused():
    assert refusal(modle="nano-llama") == (
        "unknown parameter 'modle'; this notebook takes model, precision, memory, revision, prompts, k, blocks, token, "
        "seed; did you mean 'model'?"
    )
    assert refusal(zzz=None).endswith("leave it out.")
    assert "unknown parameter 'token'; this notebook takes k, seed" in refusal(("k", "seed"), k=1, seed=0, token=-1)
    assert "parameter 'seed' is missing" in refusal(("k", "seed"), k=1)


def test_choices_within_the_model_are_accepted():
    chosen = {
        ("", 12): range(2, 10),
        ("", 3): range(3),
        ("", 33): range(12, 20),
        ("3, 1-2", 3): (2, 0, 1),
        (12, 12): (11,),
    }
    for (blocks, n_blocks), expected in chosen.items():
        assert choices.chosen_blocks(sized(n_blocks), blocks, 1) == list(expected)
    assert [choices.chosen_middle(step, [0, 10, 100]) for step in (0, 10)] == [None, 10]
    assert [choices.chosen_turn(at, {"deep": 40, "model": 3}) for at in (0, 1, 3)] == [0, 1, 3]
    assert choices.chosen_turn(-1, {"deep": 40, "model": 4}) == -1  # searched where every model has four blocks
    assert [choices.chosen_centres(given, range(5, 31), "model") for given in ("", "6,15,31")] == [[], [5, 14, 30]]


TURN = "it must be a block from 1 to {} (the depth of model), or 0 for no line; pass -p turn 0"
BEYOND = {
    "'k' is 9 (int); it must be a whole number from 1 to 8 (the width of tiny); pass -p k 8": (
        choices.chosen_blocks,
        sized(3, 8, "tiny"),
        "",
        9,
    ),
    "'blocks' is '2-4' (str); it must be blocks from 1 to 3 (the depth of tiny), and there is no block 4; "
    "pass -p blocks 1-3": (choices.chosen_blocks, sized(3, 8, "tiny"), "2-4", 8),
    "'blocks' is '2-99999999999999' (str); it must be blocks from 1 to 12 (the depth of model), and there is no block "
    "13; pass -p blocks 1-8": (choices.chosen_blocks, sized(12), "2-99999999999999", 1),
    "'middle' is 100 (int); it must be one of 10 (steps that are measured between the first and the last); "
    "pass -p middle 10": (choices.chosen_middle, 100, [0, 10, 100]),
    "'middle' is 100 (int); it must be 0, as no step lies between the first and last; pass -p middle 0": (
        choices.chosen_middle,
        100,
        [0, 100],
    ),
    f"'turn' is 13 (int); {TURN.format(12)}": (choices.chosen_turn, 13, {"deep": 40, "model": 12}),
    f"'turn' is -1 (int); {TURN.format(3)}": (choices.chosen_turn, -1, {"deep": 40, "model": 3}),
    "'centres' is '5,15,30' (str); it must be blocks from 6 to 31, about which a window fits into model, and block 5 "
    "is none of them; pass -p centres 6": (choices.chosen_centres, "5,15,30", range(5, 31), "model"),
}


@pytest.mark.parametrize(("expected", "call"), BEYOND.items(), ids=[text[:20] for text in BEYOND])
def test_values_beyond_the_model_are_refused(expected, call):
    choice, *given = call
    assert refused(ParameterError, "", choice, *given) == f"parameter {expected}"


def test_prompts_are_number_set_or_file(tmp_path):
    def chosen(prompts, seed=0):
        return [prompt.text for prompt in choices.chosen_prompts(prompts, seed)]

    file = tmp_path / "mine.txt"
    file.write_text("first\nsecond\nthird\n")
    assert chosen(4) == chosen("embedded:4") and len(chosen(4)) == 4
    assert chosen(4, seed=1) != chosen(4)
    assert chosen(str(file)) == ["first", "second", "third"] and len(chosen(f"{file}:2")) == 2
    for wrong in ("gsm8k-or-so", f"{file}:4", f"{file}:0"):
        refused(ParameterError, "", chosen, wrong)


LOADING = {"load_model", "measure_models", "compare_trajectories", "measure_precision", "measure_emergence"}
LANGUAGE = [path for path in NOTEBOOKS if path.stem not in ("vision", "generalization", "edits")]


@pytest.mark.parametrize("path", LANGUAGE, ids=lambda path: path.stem)
def test_language_notebooks_pass_memory_to_every_loader(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    loaders = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in LOADING]
    given = [{word.arg: ast.unparse(word.value) for word in call.keywords} for call in loaders]
    assert given and {words.get("memory") for words in given} == {"memory or None"}
