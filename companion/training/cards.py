"""Shipping a finished run: a Hugging Face folder in half precision, a machine-readable record and a model card.

The shipped folder is a complete Hugging Face folder of the last step; each earlier checkpoint of a language model is a
folder `stepN` inside it. `training.json` holds what a program needs (steps, seed, losses or accuracies, the fingerprint
of step 0), `README.md` the same for a reader, of a language model with a sample of its text.
"""

import hashlib
import json
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, ViTForImageClassification

from companion.training import language, vit
from companion.training.run_files import read_log
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.labelled_images import LabelledImages

_VERSIONS = {package: version(package) for package in ("torch", "transformers")}
_ARCHITECTURES = {
    "neox": "GPT-NeoX, as Pythia (rotary positions, parallel attention and MLP, LayerNorm, GELU)",
    "llama": "Llama (rotary positions, RMSNorm, SwiGLU, grouped-query attention)",
}
_IMAGES = {
    "digits": "handwritten digits of scikit-learn (UCI optical recognition, 8 x 8 pixels, grey)",
    "cifar10": "CIFAR-10 (32 x 32 pixels, colour)",
}


def digest(model: PreTrainedModel) -> str:
    """Return the digest of a model's weights, by which a regenerated initialisation can be checked."""
    sha = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        sha.update(parameter.detach().half().numpy().tobytes())
    return sha.hexdigest()


def ship_language(name: str, run: Path, target: Path, data: str) -> None:
    """Copy a finished run's checkpoints to the folder where they ship, with record and card."""
    recipe = json.loads((run / "recipe.json").read_text())
    last = recipe["steps"]
    if not (run / f"step{last}" / "model.safetensors").exists():
        raise ParameterError(f"the run in {str(run)!r} has not reached step {last}; start its command again to resume")
    _clear(target)
    shutil.copytree(run / f"step{last}", target)
    PreTrainedTokenizerFast.from_pretrained(run / "tokens").save_pretrained(target)
    for step in recipe["checkpoints"]:
        if step != last:
            shutil.copytree(run / f"step{step}", target / f"step{step}")
    _describe_language(target, _record_of_language(name, run, recipe, target, data))


def ship_vision(name: str, run: Path, target: Path, data: LabelledImages) -> None:
    """Write a finished run of a vision transformer to the folder where it ships, with record and card."""
    if not (run / "model" / "model.safetensors").exists():
        raise ParameterError(f"the run in {str(run)!r} is not finished; start its command again to resume")
    recipe = vit.VitRecipe(**{k: v for k, v in json.loads((run / "recipe.json").read_text()).items() if k != "data"})
    model = ViTForImageClassification.from_pretrained(run / "model", dtype=torch.float16)
    # The rate has no effect from here on; it documents how the model was trained.
    model.config.drop_path_rate = recipe.drop_path
    _clear(target)
    model.save_pretrained(target)
    _describe_vision(target, _record_of_vision(name, recipe, model.float(), data))


def _clear(target: Path) -> None:
    """Remove an earlier shipped model, and refuse a folder of anything else."""
    if target.exists():
        if any(target.iterdir()) and not (target / "training.json").exists():
            raise ParameterError(
                f"{str(target)!r} is not empty and holds no training.json, as a shipped model does, and nothing of it "
                "is removed; name another folder with --ship, or empty this one"
            )
        shutil.rmtree(target)


def _facts(name: str, seed: int, steps: int, step0: PreTrainedModel, command: str, **more: int) -> dict:
    """Return the first entries of every record."""
    parameters = sum(parameter.numel() for parameter in step0.parameters())
    first = {"name": name, "seed": seed, "steps": steps, **more, "parameters": parameters}
    return {**first, "digest_step0": digest(step0), "command": f"python -m companion.training {command}"}


def sample(folder: Path) -> str:
    """Generate a continuation of a text by a shipped model, at temperature 0.8."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([tokenizer("It was a dark and stormy night, and")["input_ids"]])
    torch.manual_seed(0)
    with torch.no_grad():
        choice = {"max_new_tokens": 120, "do_sample": True, "temperature": 0.8, "pad_token_id": 0}
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **choice)
    return tokenizer.decode(out[0], skip_special_tokens=True)


def _record_of_language(name: str, run: Path, recipe: dict, target: Path, data: str) -> dict:
    """Return the record of a run, read from its files."""
    last, tokens = recipe["steps"], recipe["windows"] * recipe["context"]
    log = read_log(run / "log.csv", until=last)
    step0 = language.initialise(language.configuration(language.Recipe(**recipe)), recipe["seed"])
    size, *held_out = (run / "tokens" / "held_out.txt").read_text().splitlines()
    own_seed = language.RECIPES[name].seed if name in language.RECIPES else recipe["seed"]
    seed = "" if recipe["seed"] == own_seed else f" --seed {recipe['seed']}"
    command = f"language {name} TEXT{seed} --data {shlex.quote(data)} --ship data/checkpoints"
    return {
        **_facts(name, recipe["seed"], last, step0, command, tokens=last * tokens),
        "recipe": recipe,
        "data": {"text": data, "held_out_files": held_out, "held_out_bytes": int(size)},
        "checkpoints": [
            {column: int(row[column]) for column in ("step", "tokens")}
            | {column: round(row[column], 4) for column in ("validation_loss", "bits_per_byte")}
            for row in log
            if int(row["step"]) in (0, *recipe["checkpoints"])
        ],
        "versions": _VERSIONS,
        "sample": sample(target),
    }


def _describe_language(target: Path, record: dict) -> None:
    recipe = record["recipe"]
    shared = "" if recipe["kv_heads"] == recipe["heads"] else " sharing {kv_heads} key-value heads"
    rows = {
        "architecture": _ARCHITECTURES[recipe["architecture"]],
        "size": "{parameters:,} parameters; {blocks} blocks, width {width}, {heads} heads" + shared + ", MLP width "
        "{mlp_width}, embedding tied to the output",
        "tokenizer": "byte-level BPE, {vocabulary:,} tokens, trained on the same text",
        "data": "{text}",
        "held out": "{held}",
        "training": "{steps:,} steps of {windows} x {context} tokens = {tokens:,} tokens; AdamW, learning "
        "rate {learning_rate:g} with {warmup} steps of warm-up and a cosine, weight decay {weight_decay:g}, bfloat16 "
        "autocast",
        "seed": "{seed} (initialisation, split and batches)",
    }
    reached = "".join(
        f"| step{point['step']}{' (from its seed, not stored)' * (point['step'] == 0)} | {point['tokens']:,} "
        f"| {point['validation_loss']:.3f} | {point['bits_per_byte']:.3f} |\n"
        for point in record["checkpoints"]
    )
    head = (
        "| checkpoint | tokens seen | validation loss (nats per token) | bits per byte |\n| --- | --- | --- | --- |\n"
    )
    quoted = "\n".join(f"> {line}" for line in record["sample"].splitlines())
    sample_text = f"A sample at temperature 0.8 (the beginning is given):\n\n{quoted}\n"
    held = ", ".join(name.removesuffix(".txt").replace("_", " ") for name in record["data"]["held_out_files"])
    reached = f"{head}{reached}\n{sample_text}"
    _describe(target, record, "English language model", "a source of facts", rows, reached, held=held)


def _record_of_vision(name: str, recipe: vit.VitRecipe, model: ViTForImageClassification, data: LabelledImages) -> dict:
    """Return the record of a run; accuracies are those of the weights as they are shipped."""
    step0 = vit.initialise(vit.configuration(recipe, data), recipe.seed)
    reached = {}
    for side, x, labels in (("train", data.train, data.train_labels), ("test", data.test, data.test_labels)):
        accuracy, loss = vit.evaluate(model, x, labels)
        reached |= {f"{side}_accuracy": round(accuracy, 4), f"{side}_loss": round(loss, 4)}
    steps = recipe.epochs * vit.steps_per_epoch(recipe, data)
    command = (
        f"vit one {data.name} --weight-decay {recipe.weight_decay:g} --drop-path {recipe.drop_path:g} "
        f"--seed {recipe.seed} --epochs {recipe.epochs} --ship data/checkpoints/{name}"
    )
    return {
        **_facts(name, recipe.seed, steps, step0, command),
        "recipe": vars(recipe),
        "data": {"name": data.name, "train": len(data.train), "test": len(data.test)},
        **reached,
        "untrained_test_accuracy": round(vit.evaluate(step0, data.test, data.test_labels)[0], 4),
        "versions": _VERSIONS,
    }


def _describe_vision(target: Path, record: dict) -> None:
    recipe = vit.VitRecipe(**record["recipe"])
    rows = {
        "architecture": "ViT (pre-norm, class token, learnt positions), as DeiT without distillation",
        "size": "{parameters:,} parameters; {blocks} blocks, width {width}, {heads} heads, MLP width "
        f"{4 * recipe.width}, patches of {{patch}} x {{patch}} pixels",
        "data": _IMAGES[record["data"]["name"].partition("-")[0]] + "; {train:,} images trained on, {test:,} held out",
        "training": "{steps:,} steps ({epochs} epochs) of {batch} images; AdamW, learning rate "
        f"{recipe.peak:g} with {{warmup_epochs}} epochs of warm-up and a cosine, weight decay {{weight_decay:g}}",
        "stochastic depth": "rate {drop_path:g} at the last block, linear in depth" if recipe.drop_path else "none",
        "augmentation": "RandAugment ({layers} operation(s), magnitude {magnitude:g}), random erasing {erasing:g}, "
        "mixup {mixup:g} and cutmix {cutmix:g} on a share of {mixing:g} of the batches, label smoothing "
        "{label_smoothing:g}",
        "seed": "{seed} (initialisation, batches, augmentation, stochastic depth)",
    }
    reached = """| | accuracy | loss (nats) |
| --- | --- | --- |
| training images | {train_accuracy:.1%} | {train_loss:.3f} |
| held-out images | {test_accuracy:.1%} | {test_loss:.3f} |
| held-out images, untrained (revision `step0`, from its seed, not stored) | {untrained_test_accuracy:.1%} | |
"""
    _describe(target, record, "vision transformer", "a reader of digits", rows, reached.format(**record))


def _describe(
    target: Path, record: dict, kind: str, other: str, rows: dict[str, str], reached: str, **more: str
) -> None:
    """Write the record and the card beside the weights: the model, its training and its results."""
    (target / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    known = {**record["recipe"], **record["data"], **record, **more}
    table = "".join(f"| {label} | {value.format(**known)} |\n" for label, value in rows.items())
    versions = ", ".join(f"{package} {number}" for package, number in record["versions"].items())
    card = f"""# {record["name"]}

A small {kind}, trained for this project so that everything in it runs without a network.
It is an object of study, not {other}.

| | |
| --- | --- |
{table}| stored as | float16, safetensors |
| made with | {versions} |
| command | `{record["command"]}` |

{reached}"""
    (target / "README.md").write_text(card)
