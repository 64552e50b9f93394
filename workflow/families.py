"""Every model type of transformers, tiny and random, loaded by the library and compared with plain autograd.

    python -m workflow.families [TYPE ...]

A type's model is built by itself: its configuration with sizes shrunk by name (`SIZES`; families.toml has what some
need besides) and random weights, large enough that no block is nearly linear. It is saved and loaded twice: by the
library in float32, and by transformers as it does by default, for autograd through the whole model in float64. Compared
are the states at every block, and of the first and the last block the Jacobians at one token and from an earlier one.

Each type has a process of its own with a time limit. Answers are kept in `results/families.jsonl` while library,
program and transformers are the same, so that a run that was stopped goes on. Once all have one, the table is written.
"""

from __future__ import annotations

import csv
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

import coupling_lib as cl
from coupling_lib import errors, paths

TABLE, KEPT = paths.ROOT / "data" / "families.csv", paths.RESULTS / "families.jsonl"
COLUMNS = ("mapping", "type", "class", "outcome", "route", "exact_to", "states_to", "why", "transformers")
MAPPINGS: dict[str, Mapping[str, Any]] = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "image classification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "image and text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
TYPES = [(mapping, kind) for mapping, names in MAPPINGS.items() for kind in names]
EXACT, SAME = 1e-4, 1e-5  # of Jacobians, and of states, float32 against float64
SECONDS, TOKENS, VOCABULARY = 120, 12, 512
LAYERS = r"(conf_)?num_hidden_layers|n_layers?|num_layers|layers|depth|(num_)?(de|en)coder_layers|num_blocks"
# The largest value of a setting, by the first expression that fits the whole of its name.
SIZES = {
    r".*vocab_size.*|num_embeddings|codebook_size|.*_vocab": VOCABULARY,
    r"n_positions|n_ctx|max_seq_len|model_max_length|.*max_.*position.*|context_length": 128,
    r"(moe|(moe_)?shared_experts?|expert).*(intermediate|ffn).*|shared_intermediate_size|share_expert_dim": 32,
    r".*intermediate_size.*|.*ffn_(dim|hidden_size)|ffn_dim|d_?ff|d_inner|dim_ff|mlp_dim|feed_forward_size": 64,
    r"mamba_(n|num)_heads|n_mamba_heads|mamba_.*head_?dim|mamba_d_head": 8,
    r"num_key_value_heads|num_kv_heads|kv_n_heads|.*_num_key_value_heads|linear_num_key_heads|num_query_groups": 2,
    r"(.*_)?(n_head|n_heads|num_heads|heads|num_attention_heads|attention_heads)|linear_num_value_heads": 4,
    r".*(_head_dim|dim_head|head_size)|head_dim|d_head|d_kv|kv_channels|.*state_size|mamba_d_state|rotary_dim": 8,
    r".*_rank": 16,
    r"n_routed_experts|.*num_(local_)?experts|zero_expert_num": 8,
    r".*num_experts_per_tok(en)?|moe_(top)?k|moe_top_k|n_group|num_expert_group|n_groups": 2,
    r"topk_group|first_k_dense_replace|num_nextn_predict_layers|num_dense_layers": 1,
    r"num_self_attends_per_block|num_latents|floor_scale|index_topk|.*chunk_(size|length)": 4,
    r"sliding_window(_size)?|attention_window(_size)?|local_attention.*|keep_window_size": 4,
    r"patch_size": 8,
    r"(?!.*kernel).*(_size|_dim|_width|_channels|_hidden|hidden_size_global)|d_model|d_latents|n_embd|dim": 32,
}
NEEDED = Path(__file__).with_suffix(".toml")
NEEDS = tomllib.loads(NEEDED.read_text(encoding="utf-8"))
# Labels, and what is derived from the number of layers.
DROPPED = ("id2label", "label2id", "per_layer_config", "stage_names", "out_features", "out_indices", "model_type")


def shrunk(given: Mapping[str, Any], ids: dict[str, int], blocks: int = 3) -> dict[str, Any]:
    """Shrink a configuration's settings by name, and nested ones; `ids` has each special token's number by its name."""
    depth = next((v for k, v in given.items() if re.fullmatch(LAYERS, str(k)) and isinstance(v, int)), 0)
    by_layer = [value for value in given.values() if isinstance(value, list) and len(value) == depth > 4]
    # Of layers that differ one of each kind, and the first more than once if there are few.
    kinds = list(zip(*(map(str, value) for value in by_layer), strict=True))
    chosen = [kinds.index(kind) for kind in dict.fromkeys(kinds)][:4]
    chosen = [0] * (blocks - len(chosen)) + chosen

    def small(name: str, value: Any) -> Any:
        if isinstance(value, list) and any(value is each for each in by_layer):
            # Numbers of layers are told from settings of layers by being all different.
            numbers = isinstance(value[0], int) and len(set(value)) == len(value)
            return list(range(len(chosen))) if numbers else [small(name, value[layer]) for layer in chosen]
        if isinstance(value, list):
            return [small(f"{name}{place}" if "_id" in name else name, each) for place, each in enumerate(value)]
        if isinstance(value, Mapping):
            # Other stacks are less deep than the text's, which is told from them by its depth.
            return shrunk(value, ids, 3 if re.search(r"text|llm|rope|decoder", name) else 2)
        size = next((size for pattern, size in SIZES.items() if re.fullmatch(pattern, name)), None)
        if name == "head_dim" and value is None:
            return size
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if re.search(r"_(id|ids|index)\d*$", name):
            return value if value < 64 else ids.setdefault(name, VOCABULARY - 1 - len(ids))
        if re.fullmatch(LAYERS, name):
            return len(chosen)
        return (
            4
            if name == "num_key_value_heads" and value == given.get("num_attention_heads")
            else min(value, size or value)
        )

    return {name: small(str(name), value) for name, value in given.items() if name not in DROPPED}


def configuration(mapping: str, kind: str) -> PreTrainedConfig:
    """Make the tiny configuration of a type."""
    family = CONFIG_MAPPING[kind]
    given, needs = family().to_dict(), {}
    for those in (those for kinds, those in NEEDS.items() if kind in kinds.split()):
        needs |= those
    given = shrunk(given, {}) if needs.pop("shrunk", True) else given
    for place, value in needs.items():
        *path, last = place.split("/")
        inner = given
        for part in path:
            inner[part] = inner = inner.get(part) or {}
        inner[last] = value
    decoder = {"is_decoder": True} if mapping == "causal" and kind in MAPPINGS["masked"] else {}
    return family(**{name: value for name, value in given.items() if name not in DROPPED} | decoder)


def build(mapping: str, kind: str, alone: bool) -> PreTrainedModel:
    """Build a type's tiny random model; of one of several stacks the text's `alone`, if asked."""
    name, config = MAPPINGS[mapping][kind], configuration(mapping, kind)
    family = getattr(transformers, name if isinstance(name, str) else name[0])
    parts = (part for part in vars(config).values() if isinstance(part, family.config_class))
    config = config if isinstance(config, family.config_class) else next(parts, config)
    if alone:
        config = config.get_text_config(decoder=True)
        tables = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_MAPPING)
        family = next(table[type(config)] for table in tables if type(config) in table)
    torch.manual_seed(0)
    hf, generator = family(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in (weight for weight in hf.parameters() if weight.is_floating_point()):
            size = min(0.15, 1.2 * (len(weight) / max(1, weight.numel())) ** 0.5) if weight.ndim > 1 else 0.1
            weight.add_((size * torch.randn(weight.shape, generator=generator)).to(weight.dtype))
    return hf


def default(hf: PreTrainedModel, folder: str) -> PreTrainedModel:
    """Load a model as transformers does where nothing is asked for, but for the cache."""
    hf = type(hf).from_pretrained(folder).eval().requires_grad_(False)
    hf.config.use_cache = hf.config.get_text_config().use_cache = False
    return hf


def example(hf: PreTrainedModel) -> dict[str, Tensor]:
    """Make an input: tokens none of which is special, or an image."""
    generator = torch.Generator().manual_seed(2)
    if hf.main_input_name == "pixel_values":
        config = hf.config if hasattr(hf.config, "image_size") else getattr(hf.config, "vision_config", hf.config)
        size = getattr(config, "image_size", 64)
        shape = (1, getattr(config, "num_channels", 3), *([size, size] if isinstance(size, int) else size))
        return {"pixel_values": torch.randn(shape, generator=generator)}
    most = min(400, hf.config.get_text_config().vocab_size)
    return {"input_ids": torch.randint(most // 2, most, (1, TOKENS), generator=generator)}


def built(mapping: str, kind: str, folder: str) -> PreTrainedModel:
    """Build and save a model, and see that transformers runs it: the whole, or else the text's stack."""
    reasons = []
    for alone in (False, True):
        doing = "not built"
        try:
            (hf := build(mapping, kind, alone)).save_pretrained(folder)
            doing = "does not run"
            if not getattr(hf.config, "is_encoder_decoder", False):
                with torch.no_grad():
                    default(hf, folder)(**example(hf))
            return hf
        except Exception as error:
            reasons.append(f"{doing} ({in_one_line(error, folder)})")
    raise RuntimeError(reasons[0])


class Wide(TorchFunctionMode):
    """Within it, what a family's own code casts to float32 becomes float64, and experts' products know float64."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is torch._grouped_mm:
            (x, experts, *_), ends = args, kwargs["offs"].cpu().long()
            *parts, rest = x.tensor_split(ends)
            return torch.cat([*(part @ W for part, W in zip(parts, experts, strict=True)), rest @ experts[0] * 0])
        func = Tensor.double if func is Tensor.float else func
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def reference(hf: PreTrainedModel, path: str, pairs: list[tuple[int, int]]) -> tuple[list[Tensor], dict]:
    """Give states, and Jacobians of the first and last block by block and pair, varying a block's input in the pass."""
    torch.set_default_dtype(torch.float64)
    blocks, starts, ends = hf.double().get_submodule(path), [], []

    def enter(block: nn.Module, args: tuple, kwargs: dict) -> tuple:
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs), None)
        starts.append((args[0] if args else kwargs[name]).detach().requires_grad_(True))
        return ((starts[-1], *args[1:]), kwargs) if args else (args, {**kwargs, name: starts[-1]})

    def leave(block: nn.Module, args: tuple, output: Any) -> None:
        ends.append((output if isinstance(output, Tensor) else output[0]).reshape(starts[-1].shape))

    for block in blocks:
        block.register_forward_pre_hook(enter, with_kwargs=True)
        block.register_forward_hook(leave)
    with torch.enable_grad(), Wide():
        hf(**{name: x.double() if x.is_floating_point() else x for name, x in example(hf).items()})
        wanted = {}
        for block in {0, len(blocks) - 1}:
            rows = [torch.autograd.grad(y, starts[block], retain_graph=True)[0] for y in ends[block][0, pairs[0][1]]]
            for t1, t2 in pairs:
                J = torch.cat(rows)[:, t1]
                wanted[block, t1, t2] = J - torch.eye(len(J)) if t1 == t2 else J
    torch.set_default_dtype(torch.float32)
    return [starts[0].detach(), *(state.detach() for state in ends)], wanted


def compared(model: cl.Model, hf: PreTrainedModel) -> dict[str, str]:
    """Compare the library's states and Jacobians with those of the model as transformers loads it."""
    trace = cl.trace(model, example(hf)[model.hf.main_input_name])
    last = trace.n_tokens - 1
    states, wanted = reference(hf, model.blocks.path, [(last, last), (last - 2, last)][:last])
    off = max(float((x - y[0]).norm() / y.norm()) for x, y in zip(trace.hidden.double(), states, strict=True))
    worst = 0.0
    for (block, t1, t2), J in wanted.items():
        try:
            error = (trace.jacobian(block, t1, t2).dense().double() - J).norm()
        except errors.UntrustworthyResultError:
            # What is rounding may be refused, and nothing else.
            error = J.norm() * (J.norm() > 1e-6 * wanted[block, t2, t2].norm())
        worst = max(worst, float(error / J.norm().clamp_min(1e-300)))
    outcome = "exact" if worst < EXACT and off < SAME else "wrong"
    return {"outcome": outcome, "route": model.blocks.route, "exact_to": f"{worst:.0e}", "states_to": f"{off:.0e}"}


def in_one_line(error: BaseException, folder: str) -> str:
    """Write an error in one line; the library's own needs no name of its class."""
    said = str(error) if isinstance(error, errors.CouplingError) else f"{type(error).__name__}: {error}"
    said = " ".join(said.replace(folder, "FOLDER").split())
    return said if len(said) <= 240 else f"{said[:236]} ..."


def tried(mapping: str, kind: str) -> dict[str, str]:
    """Build, load and compare the model of one type."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            hf = built(mapping, kind, folder)
        except RuntimeError as error:
            return {"outcome": "not tried", "why": str(error)}
        row = {"class": type(hf).__name__}
        try:
            return row | compared(cl.load_model(folder), default(hf, folder))
        except Exception as error:
            refused = isinstance(error, errors.CouplingError)
            return row | {"outcome": "refused" if refused else "error", "why": in_one_line(error, folder)}


def work(mapping: str, kind: str, sender: connection.Connection) -> None:
    """Try one type, in a process of its own."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        sender.send(tried(mapping, kind))


def run(wanted: list[tuple[str, str]], jobs: int) -> Iterator[dict[str, str]]:
    """Try types side by side, and give each answer as it comes."""
    # A fork has torch and transformers at hand; to import them takes longer than most types do.
    context, waiting, running = multiprocessing.get_context("fork"), wanted[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(*waiting[-1], sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = process, waiting.pop(), time.monotonic()
        ready = connection.wait(list(running), timeout=1)
        for receiver, (process, what, since) in list(running.items()):
            if receiver not in ready and time.monotonic() - since < SECONDS:
                continue
            try:
                answer = receiver.recv() if receiver in ready else {"outcome": "not tried", "why": "took too long"}
            except EOFError:
                answer = {"outcome": "error", "why": "the process ended without an answer"}
            process.kill()
            process.join()
            del running[receiver]
            yield dict(zip(COLUMNS, what, strict=False)) | answer


def main(names: list[str]) -> None:
    """Try all types, or those that are named, and write the table once all have an answer."""
    if unknown := sorted(set(names) - {kind for _, kind in TYPES}):
        raise errors.ParameterError(f"transformers {transformers.__version__} has no type {', '.join(unknown)}")
    code = b"".join(file.read_bytes() for file in [Path(__file__), NEEDED, *sorted(paths.PACKAGE.rglob("*.py"))])
    version = hashlib.sha256(code + transformers.__version__.encode()).hexdigest()[:16]
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    for row in map(json.loads, KEPT.read_text(encoding="utf-8").splitlines() if KEPT.is_file() else ()):
        if row.pop("version") == version and row["type"] not in names:
            found[row["mapping"], row["type"]] = row
    wanted = [each for each in TYPES if each not in found and (not names or each[1] in names)]
    with KEPT.open("a", encoding="utf-8") as kept:
        for number, row in enumerate(run(wanted, os.cpu_count() or 1), start=1):
            found[row["mapping"], row["type"]] = row
            print(json.dumps(row | {"version": version}), file=kept, flush=True)
            print(f"{number}/{len(wanted)}", *row.values(), flush=True)
    if len(found) == len(TYPES):
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(found[each] | {"transformers": transformers.__version__} for each in TYPES)
    for mapping in MAPPINGS:
        counted = Counter(row["outcome"] for row in found.values() if row["mapping"] == mapping)
        print(f"{mapping}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counted.items()))}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sys.exit(errors.in_one_line(lambda: main(sys.argv[1:]), "stopped; the same command goes on"))
