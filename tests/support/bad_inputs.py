"""Inputs that people really give and that cannot work: what is called, and what its one line says.

What `tests/coupling_lib` refuses already beside what they accept is not repeated here:
truncated and pickled weights, GGUF files cut short, misspelt aliases, names that are empty, shapes of token ids.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tiny
import torch
import transformers
from plain_gpt import GPT

import coupling_lib as cl
from companion.training.drop_path import measure_drop_path
from coupling_lib.measures.depth import measure_models
from coupling_lib.svd.triplets import top_triplets_stacked

CODE = "__import__('os').system('touch ran')"
TEXT = "one two three four five"
MATRICES = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
DAMAGED = "config.json of .* is damaged; fetch it again"
UNLOADED = "cannot be loaded by transformers .*check that its configuration, weights and tokenizer"
WHOLE_K = "k is .*, so it must be a whole number from 1 to 96"


class Rig:
    """What the calls are made on: models, a trace, a store with one measurement, a folder for files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        self.model, self.vision = cl.load_model("nano-neox"), cl.load_model("nano-vit")
        self.bare, self.plain = cl.wrap_model(tiny.llama(), name="bare"), cl.wrap_model(GPT(), blocks="transformer.h")
        self.trace = cl.trace(self.model, TEXT)
        self.depth = cl.sweep(cl.measure_depth, self.model, [TEXT], ks=(3,), store=self.store)
        tiny.save_llama(folder / "llama")

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return path

    def copied(self, **config: Any) -> Path:
        """A copy of the tiny decoder whose configuration says something else."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "llama", copy)
        stored = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(stored | config))
        return copy

    def loaded(self, **config: Any) -> cl.Model:
        return cl.load_model(self.copied(**config))

    def images(self, pictures: Any = "digits", n: Any = 1) -> Any:
        return cl.load_images(pictures, self.vision.hf.config, n)

    def picture(self, content: bytes) -> Any:
        return self.images(self.file("pictures/one.png", content).parent)


class Bad(NamedTuple):
    """One row: its name, the call, and what the message matches."""

    name: str
    call: Callable[[Rig], Any]
    message: str


def loading(name: Any, message: str, **arguments: Any) -> Bad:
    row = f"model {str(name)[:30]!a} {arguments or ''}"
    return Bad(row, lambda rig: cl.load_model(name, device="cpu", **arguments), message)


def spoilt(what: str, change: Callable[[Path], Any], message: str) -> Bad:
    return Bad(what, lambda rig: [change(folder := rig.copied()), cl.load_model(folder)], message)


def calling(what: str, message: str, call: Callable, *given: Any, **named: Any) -> Bad:
    return Bad(what, lambda rig: call(*given, **named), message)


def measured(message: str, measure: Callable, **settings: Any) -> Bad:
    return Bad(f"{measure.__name__} with {settings}", lambda rig: measure(rig.model, [TEXT], **settings), message)


def read(name: str, content: str | bytes, message: str) -> Bad:
    return Bad(f"prompts in {name}", lambda rig: cl.load_prompts(rig.file(name, content)), message)


def traced(what: str, given: Any, message: str) -> Bad:
    return Bad(f"trace of {what}", lambda rig: cl.trace(rig.model, given), message)


def seen(what: str, image: Any, message: str) -> Bad:
    return Bad(f"image with {what}", lambda rig: cl.trace(rig.vision, image), message)


WITH_NAN = tiny.llama()
WITH_NAN.model.embed_tokens.weight.data[5, 3] = np.nan
RESNET = transformers.ResNetModel(transformers.ResNetConfig(hidden_sizes=[8], depths=[1]))
IDS, BLACK, BEYOND = torch.tensor([[1, 2]]), torch.zeros(1, 1, 8, 8), "0," + "9" * 5000
ENDLESS = b"GGUF\x03\0\0\0" + b"\xff" * 16

LIBRARY = [
    # Names of models: none may become a path outside, a system call that fails, or a command.
    loading("../../etc", "'../../etc' is no alias, no folder and no Hugging Face id; an id has the form"),
    loading("/etc", "'/etc' has no config.json; choose a model in the transformers format"),
    loading("a/b/c", "'a/b/c' is no alias, no folder and no Hugging Face id"),
    loading("https://huggingface.co/gpt2", "is no alias, no folder and no Hugging Face id"),
    loading("nano-neox\0", r"model is 'nano-neox\\x00'; a name has printable characters"),
    loading("x" * 5000, r"model is 'xxx.*\(5,002 characters\); a name has printable characters, at most 255"),
    loading("org/" + "n" * 300, "a name has printable characters, at most 255 between slashes"),
    loading(CODE, "no model is called .*touch ran.*see data/models.csv"),
    loading("$(touch ran)", r"no model is called '\$\(touch ran\)'"),
    loading(b"nano-neox", "model is b'nano-neox'; it must be an alias"),
    loading(["nano-neox"], r"model is \['nano-neox'\]; it must be an alias"),
    Bad("an empty folder", lambda rig: cl.load_model(rig.store), "has no config.json"),
    Bad("weights alone", lambda rig: cl.load_model(rig.folder / "llama" / "model.safetensors"), "does not exist|no al"),
    # How a model is loaded.
    loading("nano-neox", "precision is 'fp32'; it must be one of float32, bfloat16", precision="fp32"),
    loading("nano-neox", "precision is None; it must be one of", precision=None),
    loading("nano-neox", r"precision is \['nf4'\]; it must be one of", precision=["nf4"]),
    loading("nano-neox", "'nano-neox' has no revision 'step99'; choose one of step0", revision="step99"),
    loading("nano-neox", r"has no revision '\.\./\.\.'; choose one of step0", revision="../.."),
    loading("nano-neox", "revision is 1000; it must be a branch", revision=1000),
    loading("nano-neox", "seed is 1180591620717411303424; it must be a whole number from 0", seed=2**70),
    loading("nano-neox", "seed is '0'; it must be a whole number", seed="0"),
    loading("nano-neox", "memory is '8XB'; it must be a text such as '8GiB'", memory="8XB"),
    loading("nano-neox", r"memory is '999.*\(5,004 characters\); it must be a text", memory="9" * 5000 + "GB"),
    loading("nano-neox", "memory is nan; it must be a text", memory=float("nan")),
    loading("nano-neox", "'nano-neox' needs .* and memory allows 0.0 MB", memory="1KB"),
    # Files of a model that do not say what is in them.
    Bad("code as activation", lambda rig: rig.loaded(hidden_act=CODE), "KeyError.*touch ran.*check its values"),
    Bad("an unknown rotation", lambda rig: rig.loaded(rope_scaling={"type": "nonsense"}), "KeyError.*check its values"),
    Bad("a list as bits", lambda rig: rig.loaded(quantization_config=[1]), r"are quantised already \(\[1\]\)"),
    Bad("a list as type", lambda rig: rig.loaded(model_type=["llama"]), r"type \['llama'\]: .* has no such model"),
    spoilt("a folder as config", lambda f: [(f / "config.json").unlink(), (f / "config.json").mkdir()], DAMAGED),
    spoilt("a config of brackets", lambda f: (f / "config.json").write_text("[" * 100_000), DAMAGED),
    spoilt("a damaged tokenizer", lambda f: (f / "tokenizer.json").write_text("{no"), UNLOADED),
    Bad("a GGUF of zeros", lambda rig: cl.load_model(rig.file("zeros.gguf", b"GGUF" + bytes(60))), "zeros.gguf.*damag"),
    Bad("endless tables", lambda rig: cl.load_model(rig.file("endless.gguf", ENDLESS)), "endless.gguf.*damaged or"),
    # Models from memory.
    calling("a layer", "a Linear and no transformers model, and has no list", cl.wrap_model, torch.nn.Linear(2, 2)),
    calling("a text as tokenizer", "tokenizer is 'gpt2'; a transformers", cl.wrap_model, tiny.llama(), "gpt2"),
    calling("a convolutional network", "ResNetModel does not say how large its images are", cl.wrap_model, RESNET),
    Bad(
        "NaN in the embedding of one token",
        lambda rig: cl.measure_depth(cl.wrap_model(WITH_NAN), [torch.tensor([[4, 5, 6, 5]])], ks=(3,)),
        "the state at position 1 holds NaN or infinite values before block 1, in the embedding",
    ),
    # What a model is asked to read.
    traced("nothing", "", "prompt 1 of 1 is an empty text; write one, or leave it out"),
    traced("blanks", " \n", "prompt 1 of 1 is an empty text"),
    traced("a NUL", "a\0b", r"holds the control character '\\x00' at position 1; take it out"),
    traced("a terminal's escape", "\x1b[31mred", r"holds the control character '\\x1b' at position 0"),
    traced("half a character", "\ud800", r"holds the control character '\\ud800' at position 0"),
    traced("100,000 tokens", "word " * 100_000, r"the input has 10000\d tokens; nano-neox reads at most 512"),
    traced("booleans", torch.ones(1, 3, dtype=torch.bool), r"dtype torch.bool; input_ids is \(1, n\)"),
    traced("complex ids", torch.zeros(1, 3, dtype=torch.complex64), r"torch.complex64; input_ids is \(1, n\)"),
    traced("a sparse tensor", torch.tensor([[1, 2]]).to_sparse(), r"input_ids is \(1, n\) with n >= 1, integer"),
    traced("ids of no device", torch.zeros(1, 3, dtype=torch.long, device="meta"), r"input_ids is \(1, n\)"),
    traced("a negative id", torch.tensor([[3, -1]]), "a token id lies outside the vocabulary of nano-neox"),
    Bad("a name instead of a model", lambda rig: cl.trace("nano-neox", TEXT), "model is 'nano-neox' .*; pass"),
    Bad("model and text swapped", lambda rig: cl.trace(TEXT, rig.model), "model is 'one .*; pass what"),
    Bad("text without a tokenizer", lambda rig: cl.trace(rig.bare, TEXT), "bare has no tokenizer and was given a text"),
    seen("three channels", torch.zeros(1, 3, 8, 8), r"shape \(1, 3, 8, 8\), and nano-vit reads \(1, 1, 8, 8\)"),
    seen("another size", torch.zeros(1, 1, 16, 16), r"and nano-vit reads \(1, 1, 8, 8\); cl.load_images brings"),
    seen("bytes", torch.zeros(1, 1, 8, 8, dtype=torch.uint8), r"dtype torch.uint8; pixel_values is"),
    seen("values up to 255", torch.full((1, 1, 8, 8), 255.0), "has values up to 255; .*divide bytes by 255"),
    seen("NaN", torch.full((1, 1, 8, 8), np.nan), "the image holds NaN or infinite values"),
    # Which Jacobian.
    Bad("block NaN", lambda rig: rig.trace.jacobian(np.nan), "block is nan; .* give a whole number"),
    *(
        Bad(f"svd with k {k!r}", lambda rig, k=k: rig.trace.jacobian(0).svd(k), WHOLE_K)
        for k in (0, -1, 97, 2.5, "5", True, None)
    ),
    calling("triplets of a text", "is a str; a matrix or an object", cl.top_triplets, "J", 1),
    calling("k 1.5 of a matrix", "k is 1.5; .*, so it must be .* 1 to 8", cl.top_triplets, MATRICES[0], 1.5),
    calling("k True of matrices", "k is True; a .* Jacobian has 8", top_triplets_stacked, MATRICES, True),
    # Measures.
    Bad("no measure", lambda rig: cl.sweep("depth", rig.model, [TEXT]), "measure is 'depth'; pass a function"),
    calling("the loss of a name", "model is a str; expected a transf", cl.coupling_loss, "nano-neox", MATRICES),
    Bad("the loss of plain torch", lambda rig: cl.coupling_loss(rig.plain, IDS), "model is a GPT; expected a transf"),
    calling("a measure of a name", "model is .*; pass what", cl.measure_depth, "nano-neox", [TEXT]),
    calling("one name for several", r"such as \['nano-neox'\]", measure_models, "nano-neox", [TEXT], ks=(3,)),
    measured("block is '1'; nano-neox has 12 blocks, counted from 0, so it must", cl.measure_tokens, block="1", k=3),
    measured("tokens is 2.5; a comparison takes 2 at least, so", cl.measure_tokens, tokens=2.5, block=1, k=3),
    measured(r"noise is \[nan\]; it must be relative noise levels above 0", cl.measure_perturbation, noise=(np.nan,)),
    measured(r"noise is \[inf\]; it must be relative noise levels", cl.measure_perturbation, noise=(np.inf,)),
    measured("noise is '0.1'; it must be relative noise levels", cl.measure_perturbation, noise="0.1"),
    measured(r"noise is \[0.1, 0.0\]; it must be relative noise levels", cl.measure_perturbation, noise=(0.1, 0.0)),
    measured(r"noise is \[\]; it must be relative noise levels", cl.measure_perturbation, noise=()),
    measured("draws is 0; it must be a whole number from 1", cl.measure_perturbation, draws=0),
    measured("draws is 1.5; it must be a whole number from 1", cl.measure_perturbation, draws=1.5),
    measured("seed is -1; it must be a whole number from 0", cl.measure_perturbation, seed=-1),
    measured("window is '3'; exp", cl.measure_trajectories, window="3"),
    Bad("the null of a number", lambda rig: cl.null_of(rig.depth, 3), "names is 3; expected a list of names"),
    Bad("one draw", lambda rig: cl.null_of(rig.depth, n_samples=1), "n_samples is 1; a standard error takes 2"),
    calling(
        "fp8", "precisions has 'fp8'; give a list of some", cl.measure_precision, "nano-neox", [TEXT], ["fp8"], k=3
    ),
    calling("steps of words", "'steps' is 'a,b'; it", cl.measure_emergence, "nano-neox", [TEXT], "a,b"),
    calling(
        "steps beyond", r"'0,999.*\(5,004 characters\); it must", cl.measure_emergence, "nano-neox", [TEXT], BEYOND
    ),
    # Files of prompts, and pictures.
    read("header.csv", "prompt,rating\n", "holds no prompt; expected one a line"),
    read("unclosed.csv", 'prompt\n"never closed\nlost\n', r"is no table \(unexpected end of data\)"),
    read("commas.csv", "prompt\nIf so, why?\n", "line 2 of .*commas.csv' is no prompt; .* commas in quotes"),
    read("cut.csv", "prompt,id\nIf so, why?\n", "line 2 of .*cut.csv' is no prompt; .* commas in quotes"),
    read("huge.csv", "prompt\n" + "x" * 200_000, r"is no table \(field larger than field limit"),
    read("nul.txt", "a\0b\n", r"the prompt in line 1 .*nul.txt' holds the control character '\\x00' at position 1"),
    read("utf16.txt", "hello".encode("utf-16"), "cannot be read .*expected UTF-8 text"),
    read("deep.jsonl", "[" * 100_000, "line 1 of .*deep.jsonl' is no prompt"),
    read("half.jsonl", '{"prompt": "\\ud800"}', r"line 1 .*half.jsonl' holds the control character '\\ud800'"),
    read("infinite.jsonl", '{"prompt": "x", "rating": 1e999}', "line 1 of .*infinite.jsonl' is no prompt"),
    Bad(
        "prompts in a pipe",
        lambda rig: [os.mkfifo(p := rig.folder / "pipe.txt"), cl.load_prompts(p)],
        r"pipe.txt' cannot be read \(it is a pipe or a device\)",
    ),
    calling("a prompt set of code", "the prompt set .*touch ran.* is unknown; choose", cl.load_prompts, CODE),
    calling("no prompt set", "the prompt set is None; expected a name or a path", cl.load_prompts, None),
    calling("half a prompt", "n is 1.5; the set has 120 prompts", cl.load_prompts, n=1.5),
    calling("a word as seed", "seed is 'a'; it must be a whole number from 0", cl.load_prompts, n=3, seed="a"),
    calling("a number as folder", "folder is 3; expected a name or a path", cl.load_prompts, "arc", folder=3),
    Bad("no picture", lambda rig: rig.picture(b"no picture"), "the picture .* cannot be read"),
    Bad("an empty picture", lambda rig: rig.picture(b""), "the picture .* cannot be read"),
    Bad("a cut picture", lambda rig: rig.picture(b"\x89PNG\r\n\x1a\n" + bytes(20)), "the picture .* cannot be read"),
    Bad("half a picture", lambda rig: rig.images(n=1.5), "images is 1.5; it must be"),
    Bad("pictures of nothing", lambda rig: rig.images(None), "pictures is None; it must be"),
    Bad("a rate in quotes", lambda rig: measure_drop_path(rig.vision, BLACK, rate="0.3"), "rate is '0.3'; a rate of"),
]
