"""Coupling prompt by prompt: with the properties of each prompt, and with and without an instruction at its end."""

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import xarray as xr

from coupling_lib.errors import ParameterError, shown
from coupling_lib.inputs.prompt_arguments import inputs_for, prompt_inputs, prompt_name, prompt_tokens
from coupling_lib.inputs.prompts import CHAIN_OF_THOUGHT, Prompt, add_chain_of_thought
from coupling_lib.measures import common
from coupling_lib.measures.depth import measure_depth
from coupling_lib.models.model import Model
from coupling_lib.store.sweep import sweep

ALONE, INSTRUCTED, CONTROL = "alone", "step by step", "control sentence"
"""The versions of a prompt: unchanged, with the instruction, with another sentence of the same length."""

SUFFIXES = {"+cot": INSTRUCTED, "+control": CONTROL}
"""Suffixes of a prompt's id, and the versions that they denote."""

# Sentences that ask for nothing, of different lengths, so that one fits any tokenizer.
_CONTROLS = (
    "It rained all day.",
    "The train was late again.",
    "A grey cat slept there.",
    "She wore a long green coat.",
    "The shop opens early on Mondays.",
    "The two boats came home after dark.",
    "The old gate by the mill was red.",
    "The path along the river was wet and narrow.",
    "My neighbour keeps eleven hens behind the barn.",
)


def prompt_versions(model: Model, questions: Iterable[Prompt]) -> list[Prompt]:
    """Append sentences to questions: the chain-of-thought instruction, and a control that instructs nothing."""
    control, versions = control_sentence(model), []
    for prompt in questions:
        controlled = replace(prompt, id=f"{prompt.id}+control", text=f"{prompt.text} {control}")
        versions += [prompt, add_chain_of_thought(prompt), controlled]
    return versions


def control_sentence(model: Model) -> str:
    """Return the control sentence whose length in tokens is nearest to that of the instruction."""
    wanted = added_tokens(model, CHAIN_OF_THOUGHT)
    return min(_CONTROLS, key=lambda sentence: abs(added_tokens(model, sentence) - wanted))


def added_tokens(model: Model, sentence: str) -> int:
    """Return the number of tokens that a sentence adds to a question."""
    return _length(model, f"How many? {sentence}") - _length(model, "How many?")


def measure_prompts(
    model: Model,
    prompts: common.Prompts,
    ks: Sequence[int] = (10,),
    token: int = -1,
    variables: Collection[str] | None = None,
) -> xr.Dataset:
    """Measure coupling across depth for every prompt, and record each prompt's properties (paper, figures 9 and 15).

    A language model without a tokenizer (random weights saved alone) reads each word as one token, whose id is the
    word's checksum: length, repetition and appended sentences keep their meaning.

    Args:
        model: a language model from `load_model`.
        prompts: `Prompt` objects, as of `load_prompts` and `prompt_versions`; or texts, or tensors of `input_ids`
            `(1, n)`, which are their own ids and have no further properties. Repetitions are left out.
        ks: numbers of singular vectors K, each from 1 to the width.
        token: the position t whose Jacobians J_tt are measured; -1 is the last.
        variables: names of variables of `measure_depth`, as in `sweep`; all by default.

    Returns:
        the dataset of `measure_depth` with coordinates along `prompt`: `id`; `question`, the id without a version's
        suffix; `version`, "alone", "step by step" or "control sentence"; `dataset`; `steps`, its reasoning steps,
        NaN where unknown; `rating`, its difficulty, NaN where unknown; `n_tokens`, its length. The
        attributes `control`, `control_tokens` and `instruction_tokens` name the control sentence and the tokens that it
        and the instruction add.

    Raises:
        ParameterError: if the model reads no text, K exceeds the width, a token does not exist, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_prompts(cl.load_model("nano-neox"), cl.load_prompts(n=2), ks=(10,))
        >>> ds["dataset"].values.tolist(), dict(ds.normalized_miscoupling.sizes)["prompt"]
        (['arc-style', 'gsm8k-style'], 2)
    """
    asked = _by_prompt(model, prompts)
    if twice := [name for name, n in Counter(prompt.id for prompt in asked).items() if n > 1]:
        raise ParameterError(f"the id {shown(twice[0])} belongs to different prompts; give each an id of its own")
    prompts, given = list(asked), readable(model, asked.values())
    for prompt, one in zip(prompts, given, strict=True):
        cut = model.tokenizer is not None and type(one) is not type(asked[prompt])
        if cut and prompt.id.endswith(tuple(SUFFIXES)):
            raise ParameterError(
                f"the prompt {prompt.id!r} is longer than {model.name} reads, and its added sentence would be cut off; "
                "take shorter prompts"
            )
    ds = sweep(measure_depth, model, given, ks=tuple(common.check_ks(model, ks)), token=token, variables=variables)
    suffixes = [next((suffix for suffix in SUFFIXES if prompt.id.endswith(suffix)), "") for prompt in prompts]
    notes = {
        "id": [prompt.id for prompt in prompts],
        "question": [prompt.id.removesuffix(suffix) for prompt, suffix in zip(prompts, suffixes, strict=True)],
        "version": [SUFFIXES.get(suffix, ALONE) for suffix in suffixes],
        "dataset": [prompt.dataset for prompt in prompts],
        "steps": [float("nan") if prompt.steps is None else float(prompt.steps) for prompt in prompts],
        "rating": [float("nan") if prompt.rating is None else prompt.rating for prompt in prompts],
        "n_tokens": [_length(model, one) for one in given],
    }
    ds = ds.assign_coords({name: ("prompt", values) for name, values in notes.items()})
    control = control_sentence(model)
    added = {"control": control, "instruction": CHAIN_OF_THOUGHT}
    lengths = {f"{name}_tokens": added_tokens(model, sentence) for name, sentence in added.items()}
    return ds.assign_attrs(measure="prompts", control=control, **lengths, words_as_tokens=int(model.tokenizer is None))


def _by_prompt(model: Model, prompts: common.Prompts) -> dict[Prompt, str | torch.Tensor]:
    """Return each prompt once, with its properties; a bare text or tensor has its name alone."""
    if isinstance(prompts, Iterator):
        prompts = list(prompts)
    given = prompt_inputs(prompts, model)
    pairs = zip(given if isinstance(prompts, str | torch.Tensor) else prompts, given, strict=True)
    return {prompt if isinstance(prompt, Prompt) else Prompt(prompt_name(one), "", ""): one for prompt, one in pairs}


def readable(model: Model, prompts: Iterable[Any]) -> list[str | torch.Tensor]:
    """Return prompts as inputs that a language model can read; see `measure_prompts`."""
    if model.hf.main_input_name != "input_ids":
        raise ParameterError(f"{model.name} reads {model.hf.main_input_name}; prompts are texts, take a language model")
    if model.tokenizer is not None:
        return inputs_for(model, prompts)
    return [
        torch.tensor([_word_ids(model, prompt)]) if isinstance(prompt, str) else prompt
        for prompt in prompt_inputs(prompts, model)
    ]


def _length(model: Model, prompt: str | torch.Tensor) -> int:
    (given,) = prompt_inputs(prompt)
    if isinstance(given, torch.Tensor):
        return given.shape[1]
    return len(_word_ids(model, given) if model.tokenizer is None else prompt_tokens(given, model.tokenizer))


def _word_ids(model: Model, text: str) -> list[int]:
    # Python's own hash of a text differs from run to run.
    vocabulary = model.hf.config.get_text_config().vocab_size
    return [zlib.crc32(word.encode()) % vocabulary for word in re.findall(r"\w+|[^\w\s]", text)]
