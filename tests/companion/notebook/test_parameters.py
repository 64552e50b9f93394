"""Notebook parameters: whatever papermill can inject is either right or refused by name, in one line."""

import ast
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from bad_parameters import RIGHT

from companion.notebook import choices, parameters
from coupling_lib.errors import ParameterError
from coupling_lib.paths import ROOT

NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.py") if path.with_suffix(".ipynb").exists())


def sized(n_blocks, d_model=96, name="model"):
    return SimpleNamespace(n_blocks=n_blocks, d_model=d_model, name=name)


def check(**changes):
    return parameters.check_parameters(RIGHT | changes)


def refusal(**changes):
    with pytest.raises(ParameterError) as caught:
        check(**changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "meta-llama/Meta-Llama-3-8B", "revision": "main"},
        {"precision": "nf4"},
        {"memory": "8GB"},
        {"memory": "1.5 GiB"},
        {"prompts": "gsm8k:50"},
        {"prompts": 1, "k": 1, "seed": 123456789},
        {"blocks": "3-5,9"},
        {"blocks": 4},
        {"token": 0},
    ],
)
def test_right_parameters_are_returned_as_given(changes):
    assert vars(check(**changes)) == RIGHT | changes


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"k": 0},
            "parameter 'k' is 0 (int); it must be a whole number from 1 to the width of the model; pass -p k 10",
        ),
        ({"prompts": 0}, "parameter 'prompts' is 0 (int); it must be a whole number of embedded prompts from 1"),
        ({"seed": -1}, "parameter 'seed' is -1 (int); it must be a whole number from 0; pass -p seed 0"),
        (
            {"precision": "fp32"},
            "it must be one of float32, bfloat16, float16, nf4, fp4, int8; pass -p precision float32",
        ),
        ({"model": " "}, "parameter 'model' is ' ' (str)"),
        ({"revision": 1000}, "parameter 'revision' is 1000 (int)"),
        (
            {"memory": 8},
            "parameter 'memory' is 8 (int); it must be an amount of memory with its unit, or empty for what is free; "
            "pass -p memory 8GB",
        ),
        ({"memory": "8 gigs"}, "parameter 'memory' is '8 gigs' (str)"),
    ],
)
def test_value_out_of_range_is_refused(changes, expected):
    assert expected in refusal(**changes)


@pytest.mark.parametrize("blocks", ["0-3", "5-3", "1,5-3", "1,1", "1-", "-2", "a", "1..3", "1-3-5", " ", "²", 0, -1])
def test_blocks_that_cannot_be_read_are_refused(blocks):
    assert f"parameter 'blocks' is {blocks!r}" in refusal(blocks=blocks)


def test_range_beyond_model_names_first_missing_block():
    with pytest.raises(ParameterError, match="no block 13"):
        choices.chosen_blocks(sized(12, 96, "nano-neox"), "2-99999999999999", 1)


def test_unknown_and_missing_names_are_refused():
    assert refusal(modle="nano-llama") == (
        "unknown parameter 'modle'; this notebook takes model, precision, memory, revision, prompts, k, blocks, token, "
        "seed; did you mean 'model'?"
    )
    assert refusal(zzz=None).endswith("leave it out.")
    with pytest.raises(ParameterError, match="unknown parameter 'token'; this notebook takes k, seed"):
        parameters.check_parameters({"k": 1, "seed": 0, "token": -1}, declared=("k", "seed"))
    with pytest.raises(ParameterError, match="parameter 'seed' is missing"):
        parameters.check_parameters({"k": 1}, declared=("k", "seed"))


def test_variables_without_plain_values_are_ignored():
    own = {"np": np, "_": 3, "__name__": "x", "exit": check, "array": np.zeros(2)}
    own |= {"both": {"trained": np.zeros(1)}, "p": SimpleNamespace(), "texts": [SimpleNamespace()]}
    assert vars(check(**own)) == RIGHT


def test_values_beyond_the_model_are_refused():
    def against(**changes):
        with pytest.raises(ParameterError) as caught:
            given = check(**changes)
            choices.chosen_blocks(sized(3, 8, "tiny"), given.blocks, given.k)
        return str(caught.value)

    assert against(k=9) == (
        "parameter 'k' is 9 (int); it must be a whole number from 1 to 8 (the width of tiny); pass -p k 8"
    )
    assert against(k=8, blocks="2-4") == (
        "parameter 'blocks' is '2-4' (str); it must be blocks from 1 to 3 (the depth of tiny), "
        "and there is no block 4; pass -p blocks 1-3"
    )


@pytest.mark.parametrize(
    ("blocks", "n_blocks", "expected"),
    [
        ("", 12, [2, 3, 4, 5, 6, 7, 8, 9]),
        ("", 3, [0, 1, 2]),
        ("", 33, [12, 13, 14, 15, 16, 17, 18, 19]),
        ("3, 1-2", 3, [2, 0, 1]),
        (12, 12, [11]),
    ],
)
def test_chosen_blocks_default_to_the_middle(blocks, n_blocks, expected):
    assert choices.chosen_blocks(sized(n_blocks), blocks, 1) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("middle", "4000 ", "it must be a training step, or 0 for the most coupled; pass -p middle 4000"),
        ("middle", -1, "parameter 'middle' is -1 (int)"),
        ("turn", -2, "it must be a block counted from 1, 0 for no line, or -1"),
        ("centres", "0,3", "it must be one to five blocks counted from 1, separated by commas, or empty"),
        ("centres", "1,2,3,4,5,6", "pass -p centres 6,16,31"),
        ("centres", "last", "parameter 'centres' is 'last' (str)"),
    ],
)
def test_unreadable_steps_and_windows_are_refused(name, value, expected):
    with pytest.raises(ParameterError) as caught:
        parameters.check_parameters({name: value}, declared=(name,))
    assert expected in str(caught.value)


def test_middle_step_lies_between_first_and_last():
    assert choices.chosen_middle(0, [0, 10, 100]) is None
    assert choices.chosen_middle(10, [0, 10, 100]) == 10
    for steps, expected in (([0, 10, 100], "one of 10 (steps"), ([0, 100], "no step lies between")):
        with pytest.raises(ParameterError, match=re.escape(expected)):
            choices.chosen_middle(100, steps)


@pytest.mark.parametrize(("turn", "n_blocks"), [(13, 12), (-1, 3)])
def test_turn_must_be_block_of_every_model(turn, n_blocks):
    depths = {"deep": 40, "model": n_blocks}
    for at in (0, 1, 3):
        assert choices.chosen_turn(at, depths) == at
    assert choices.chosen_turn(-1, {"deep": 40, "model": 4}) == -1  # searched where every model has four blocks
    message = f"'turn' is {turn} .int.; it must be a block from 1 to {n_blocks} .the depth of model."
    with pytest.raises(ParameterError, match=message):
        choices.chosen_turn(turn, depths)


def test_windows_must_fit_into_the_model():
    assert choices.chosen_centres("", range(5, 31), "model") == []
    assert choices.chosen_centres("6,15,31", range(5, 31), "model") == [5, 14, 30]
    with pytest.raises(ParameterError) as caught:
        choices.chosen_centres("5,15,30", range(5, 31), "model")
    assert str(caught.value) == (
        "parameter 'centres' is '5,15,30' (str); it must be blocks from 6 to 31, about which a window fits into model, "
        "and block 5 is none of them; pass -p centres 6"
    )


def test_prompts_are_number_set_or_file(tmp_path):
    def chosen(prompts, seed=0):
        return [prompt.text for prompt in choices.chosen_prompts(prompts, seed)]

    file = tmp_path / "mine.txt"
    file.write_text("first\nsecond\nthird\n")
    assert chosen(4) == chosen("embedded:4") and len(chosen(4)) == 4
    assert chosen(4, seed=1) != chosen(4)
    assert chosen(str(file)) == ["first", "second", "third"]
    assert len(chosen(f"{file}:2")) == 2
    for wrong in ("gsm8k-or-so", f"{file}:4", f"{file}:0"):
        with pytest.raises(ParameterError):
            chosen(wrong)


def test_language_notebooks_pass_memory_to_every_loader():
    loading = ("load_model(", "measure_models(", "compare_trajectories(", "measure_precision(", "measure_emergence(")
    taking = {path for path in NOTEBOOKS if path.stem not in ("vision", "generalization", "edits")}
    for path in taking:
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and f"{ast.unparse(node.func).rpartition('.')[2]}(" in loading
        ]
        given = [{word.arg: ast.unparse(word.value) for word in call.keywords} for call in calls]
        assert given and all(words.get("memory") == "memory or None" for words in given), path.stem
