"""Parameters of notebooks that cannot work, as papermill hands them on; what they are wrong by stands beside them.

Values of another type, out of range or beyond the model are refused in `tests/companion/notebook/test_parameters.py`.
"""

from types import SimpleNamespace
from typing import Any

from bad_inputs import CODE

from companion.notebook import choices
from companion.notebook.parameters import COMMON, RULES, check_parameters

RIGHT = {"model": "nano-neox", "precision": "float32", "memory": "", "revision": "", "prompts": 12, "k": 10}
RIGHT |= {"blocks": "", "token": -1, "seed": 0}


def check(given: dict[str, Any]) -> SimpleNamespace:
    """What a notebook does first: check by name, then against a model of 12 blocks of width 96."""
    more = {name: RULES[name].example for name in given if name in RULES and name not in COMMON}
    p = check_parameters(RIGHT | given, declared=(*COMMON, *more))
    model = SimpleNamespace(name="nano-neox", n_blocks=12, d_model=96)
    choices.chosen_blocks(model, p.blocks, p.k)
    choices.chosen_prompts(p.prompts, p.seed)
    if "pair" in given:
        choices.chosen_pair(model, p.pair)
    return p


PARAMETERS: list[tuple[dict[str, Any], str]] = [
    # Code is a text like any other, and no text that is expected.
    ({"k": CODE}, r"parameter 'k' is \"__import__.* \(str\); it must be a whole number from 1"),
    ({"seed": "1 if open('ran', 'w') else 0"}, "parameter 'seed' is .*; it must be a whole number from 0"),
    ({"blocks": CODE}, "parameter 'blocks' is .*; it must be blocks counted from 1"),
    ({"precision": "float32'); open('ran', 'w"}, "parameter 'precision' is .*; it must be one of float32"),
    ({"prompts": CODE}, "the prompt set .*touch ran.* is unknown; choose from embedded"),
    ({"noise": f"0.1,{CODE}"}, "parameter 'noise' is .*; it must be noise levels above 0"),
    ({"token": "{{ 7 * 7 }}"}, r"parameter 'token' is '\{\{ 7 \* 7 \}\}' \(str\); it must be a whole number"),
    # YAML of the wrong type, as from -y and -f.
    ({"model": {"name": "nano-neox"}}, r"parameter 'model' is .* \(dict\); it must be an alias"),
    ({"model": ["nano-neox", "nano-llama"]}, r"parameter 'model' is .* \(list\); it must be an alias"),
    ({"model": 7}, r"parameter 'model' is 7 \(int\); it must be an alias"),
    ({"blocks": [1, 2, 3]}, r"parameter 'blocks' is \[1, 2, 3\] \(list\); it must be blocks counted from 1"),
    ({"memory": {"GB": 8}}, r"parameter 'memory' is \{'GB': 8\} \(dict\); it must be an amount of memory"),
    ({"prompts": ["one", "two"]}, r"parameter 'prompts' is \['one', 'two'\] \(list\)"),
    ({"revision": 20240131}, r"parameter 'revision' is 20240131 \(int\); it must be a branch"),
    ({"rate": "0.3"}, r"parameter 'rate' is '0.3' \(str\); it must be a rate of stochastic depth"),
    # Numbers out of range, or of more digits than fit on a line.
    ({"k": 97}, r"parameter 'k' is 97 \(int\); .* from 1 to 96 \(the width of nano-neox\); pass -p k 10"),
    ({"k": 10**200}, r"parameter 'k' is 1000.*\(201 characters\) \(int\); it must be a whole number from 1 to 96"),
    ({"blocks": "1-" + "9" * 5000}, r"parameter 'blocks' is '1-999.*\(5,004 characters\) \(str\)"),
    ({"pair": "1," + "9" * 5000}, r"parameter 'pair' is '1,999.*\(5,004 characters\) \(str\)"),
    ({"pair": "9,13"}, "two blocks from 1 to 12 .* and there is no block 13"),
    ({"prompts": 121}, r"n is 121; the set has 120 prompts \(None takes all\), so it must"),
    ({"prompts": "embedded:0"}, "parameter 'prompts' is 'embedded:0'"),
    ({"prompts": "embedded:" + "9" * 5000}, r"the prompt set 'embedded:99.*\(5,011 characters\) is unknown"),
    ({"prompts": "../../etc/passwd"}, r"the prompt set '\.\./\.\./etc/passwd' is unknown; choose from"),
    ({"prompts": "missing.csv"}, "the prompt file 'missing.csv' cannot be read"),
    ({"tokens": 1}, r"parameter 'tokens' is 1 \(int\); it must be a whole number of token positions from 2"),
    ({"window": 4}, r"parameter 'window' is 4 \(int\); it must be an odd number of blocks"),
    ({"rate": 1.0}, r"parameter 'rate' is 1.0 \(float\); it must be a rate"),
    ({"noise": "0.1,nan"}, "parameter 'noise' is '0.1,nan'"),
    ({"steps": "0"}, "parameter 'steps' is '0'"),
    # Texts that are nearly right.
    ({"memory": "9" * 5000 + "GB"}, r"parameter 'memory' is '999.*\(5,004 characters\)"),
    ({"precision": "FLOAT32"}, "parameter 'precision' is 'FLOAT32'.*one of float32"),
    ({"precision": "float32\n"}, r"parameter 'precision' is 'float32\\n'.*one of float32"),
    ({"precisions": "bfloat16 nf4"}, "parameter 'precisions' is 'bfloat16 nf4'"),
    # Names that no notebook takes.
    ({"__builtins_x": 1, "trust_remote_code": True}, "unknown parameter 'trust_remote_code'; this notebook takes"),
]

# By way of papermill and a kernel, ten seconds of a core each. The first stands for its other ways to give a parameter.
PAPERMILL = [
    (["-p", "blocks", CODE], "ParameterError: parameter 'blocks' is .*touch ran"),
    # papermill reads YAML by the safe loader: the tag that would call a function is unknown to it.
    (["-y", "k: !!python/object/apply:os.system ['touch ran']"], r"\s*\^$"),
]
PAPERMILL_TOO = [
    (["-y", "k: {a: 1}"], r"ParameterError: parameter 'k' is \{'a': 1\} \(dict\); it must be a whole number"),
    (["-r", "model", CODE], "ModelUnavailableError: no model is called .*touch ran"),
]
