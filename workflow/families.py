"""Every model type of transformers, tiny and random, loaded by the library and compared with plain autograd.

    python -m workflow.families [TYPE ...]

Of each type in transformers' auto mappings a model is built by itself: its configuration class, with sizes shrunk by
name (`SIZES`, and `NEEDS` for types that need more), weights random and large enough that no block is nearly linear.
It is saved, and loaded twice: by the library in float32, and by transformers as transformers loads it, whatever
attention that is, in float64. Compared are the states at every block, and of the first and the last block the
Jacobians at one token and from an earlier one; the reference varies a block's input within the whole model's pass.

Each type has a process of its own with a time limit. Answers are appended to `results/families.jsonl` and kept while
the library, this program and transformers are the same, so that a run that was stopped goes on. A run over all types
writes `data/families.csv`.
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
from coupling_lib import paths
from coupling_lib.errors import CouplingError, ParameterError, UntrustworthyResultError
from coupling_lib.errors import in_one_line as one_line

TABLE = paths.ROOT / "data" / "families.csv"
KEPT = paths.RESULTS / "families.jsonl"
MAPPINGS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "image classification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "image and text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
COLUMNS = ("mapping", "type", "class", "outcome", "route", "exact_to", "states_to", "why", "transformers")
EXACT, SAME = 1e-4, 1e-5
SECONDS = 90
TOKENS, VOCABULARY = 12, 512

# The largest value of a setting, by its name: the first expression that fits it whole.
SIZES = [(re.compile(pattern), size) for pattern, size in [
    (r"(conf_)?num_hidden_layers|n_layers?|num_layers|layers|depth|(num_)?(de|en)coder_layers|num_blocks", 3),
    (r".*vocab_size.*|num_embeddings|codebook_size|.*_vocab", VOCABULARY),
    (r"n_positions|n_ctx|max_seq_len|model_max_length|.*max_.*position.*|context_length", 128),
    (r"(moe|(moe_)?shared_experts?|expert).*(intermediate|ffn).*|shared_intermediate_size|share_expert_dim", 32),
    (r".*intermediate_size.*|.*ffn_(dim|hidden_size)|ffn_dim|d_?ff|d_inner|dim_ff|mlp_dim|feed_forward_size", 64),
    (r"(mamba_(n|num)_heads|n_mamba_heads|mamba_.*head_?dim|mamba_d_head)", 8),
    (r"num_key_value_heads|num_kv_heads|kv_n_heads|.*_num_key_value_heads|linear_num_key_heads|num_query_groups", 2),
    (r"(.*_)?(n_head|n_heads|num_heads|heads|num_attention_heads|attention_heads)|linear_num_value_heads", 4),
    (r"qk_head_dim", 16),
    (r".*(head_dim|dim_head|head_size)|d_head|d_kv|kv_channels|.*state_size|mamba_d_state|rotary_dim", 8),
    (r".*lora_rank|.*_rank", 16),
    (r"n_routed_experts|.*num_(local_)?experts|zero_expert_num", 8),
    (r".*num_experts_per_tok(en)?|moe_(top)?k|moe_top_k|n_group|num_expert_group|n_groups", 2),
    (r"topk_group|first_k_dense_replace|num_nextn_predict_layers|num_dense_layers", 1),
    (r"sliding_window(_size)?|attention_window(_size)?|local_attention.*|keep_window_size", 4),
    (r".*chunk_(size|length)|floor_scale|index_topk", 4),
    (r"patch_size", 8),
    (r"image_size|.*max_image_size|.*img_size", 32),
    (r"num_latents|num_landmarks", 4),
    (r"(?!.*kernel).*(_size|_dim|_width|_channels|_hidden|hidden_size_global)|d_model|d_latents|n_embd|dim", 32),
]]  # fmt: skip
UNUSED = ("id2label", "label2id", "per_layer_config", "stage_names", "out_features", "out_indices")
NEEDED = Path(__file__).with_suffix(".toml")
NEEDS: dict[str, dict[str, Any]] = {}
for kinds, needed in tomllib.loads(NEEDED.read_text(encoding="utf-8")).items():
    for one in kinds.split():
        NEEDS[one] = NEEDS.get(one, {}) | needed


def types() -> list[tuple[str, str]]:
    """Give every mapping with each type that it has."""
    return [(mapping, kind) for mapping, names in MAPPINGS.items() for kind in names]


def shrunk(given: Mapping[str, Any], ids: dict[str, int], blocks: int = 3) -> dict[str, Any]:
    """Shrink a configuration's settings by name, those of nested ones too; `ids` keeps each special token's number."""
    heads = given.get("num_attention_heads")
    depth = next((v for k, v in given.items() if SIZES[0][0].fullmatch(str(k)) and isinstance(v, int)), None)
    per_layer = {k: v for k, v in given.items() if isinstance(v, list) and depth and len(v) == depth > 4}
    kinds = list(zip(*(map(str, v) for v in per_layer.values()), strict=True)) if per_layer else []
    # Of layers that differ one of each kind, the first kind more than once if there are few.
    chosen = [kinds.index(kind) for kind in dict.fromkeys(kinds)][:4]
    chosen = [0] * (blocks - len(chosen)) + chosen

    def small(name: str, value: Any) -> Any:
        if name in per_layer:
            # Numbers of layers are told from settings of layers by being all different.
            numbers = isinstance(value[0], int) and len(set(value)) == len(value)
            return list(range(len(chosen))) if numbers else [small(name + "_", value[i]) for i in chosen]
        if isinstance(value, Mapping):
            # The other stacks are less deep than that of the text, which is told from them by its depth.
            return shrunk(value, ids, 3 if re.search(r"text|llm|rope|decoder", name) else 2)
        if re.search(r"(_token_id|_token_index|_token_ids|_id|_index)$", name):
            one = isinstance(value, int)
            found = [ids.setdefault(f"{name}{i}", VOCABULARY - 1 - len(ids)) if isinstance(v, int) and v > 64 else v
                     for i, v in enumerate([value] if one else value or [])]  # fmt: skip
            return found[0] if one else found if isinstance(value, list) else value
        size = next((size for pattern, size in SIZES if pattern.fullmatch(name)), None)
        if size is None or isinstance(value, bool):
            return value
        if isinstance(value, list) and value and all(isinstance(v, int) for v in value):
            return [min(v, size) for v in value]
        if name == "head_dim" and value is None:
            return size
        if isinstance(value, int) and SIZES[0][0].fullmatch(name):
            return len(chosen)
        if name == "num_key_value_heads" and value == heads:
            return 4
        return min(value, size) if isinstance(value, int) else value

    return {name: small(str(name), value) for name, value in given.items() if name not in UNUSED}


def configuration(mapping: str, kind: str) -> PreTrainedConfig:
    """Make the tiny configuration of a type."""
    family, needs = CONFIG_MAPPING[kind], NEEDS.get(kind, {})
    given = family().to_dict()
    given = shrunk(given, {}) if needs.get("shrunk", True) else given
    for place, value in needs.items():
        *path, last = place.split("/")
        inner = given
        for part in path:
            inner[part] = inner = inner.get(part) or {}
        inner[last] = value
    if mapping == "causal" and kind in MAPPINGS["masked"]:
        given["is_decoder"] = True
    return family(
        **{name: value for name, value in given.items() if name not in ("model_type", "architectures", "shrunk")}
    )


def build(mapping: str, kind: str, alone: bool) -> PreTrainedModel:
    """Build a type's tiny model with random weights; of a model of several stacks that of its text `alone`, if asked."""
    name = MAPPINGS[mapping][kind]
    family, config = getattr(transformers, name if isinstance(name, str) else name[0]), configuration(mapping, kind)
    parts = (part for part in vars(config).values() if isinstance(part, family.config_class))
    config = config if isinstance(config, family.config_class) else next(parts, config)
    if alone:
        config = config.get_text_config(decoder=True)
        tables = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_MAPPING)
        family = next(table[type(config)] for table in tables if type(config) in table)
    torch.manual_seed(0)
    hf, generator = family(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.is_floating_point():
                size = min(0.15, 1.2 * (len(weight) / max(1, weight.numel())) ** 0.5) if weight.ndim > 1 else 0.1
                weight.add_(size * torch.randn(weight.shape, generator=generator).to(weight.dtype))
    return hf


class Wide(TorchFunctionMode):
    """Within it, what a family's own code casts to float32 becomes float64."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is torch._grouped_mm:
            a, b = args
            ends = kwargs["offs"].tolist()
            parts = zip([0, *ends], ends, b, strict=False)
            return torch.cat(
                [a[start:end] @ w for start, end, w in parts] + [a.new_zeros(len(a) - ends[-1], b.shape[-1])]
            )
        func = Tensor.double if func is Tensor.float else func
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def default(hf: PreTrainedModel, folder: str) -> PreTrainedModel:
    """Load a model as transformers does where nothing is asked for."""
    hf = type(hf).from_pretrained(folder).eval().requires_grad_(False)
    # What a cache would hold is no part of a block's map.
    for config in {id(each): each for each in (hf.config, hf.config.get_text_config())}.values():
        config.use_cache = False
    return hf


def example(hf: PreTrainedModel) -> dict[str, Tensor]:
    """Make an input: tokens none of which is special, or an image."""
    generator = torch.Generator().manual_seed(2)
    if hf.main_input_name == "pixel_values":
        config = getattr(hf.config, "vision_config", hf.config)
        size = getattr(config, "image_size", None) or 64
        size = [size, size] if isinstance(size, int) else size
        return {"pixel_values": torch.randn(1, getattr(config, "num_channels", 3), *size, generator=generator)}
    highest = min(400, hf.config.get_text_config().vocab_size)
    return {"input_ids": torch.randint(highest // 2, highest, (1, TOKENS), generator=generator)}


def reference(
    hf: PreTrainedModel, path: str, inputs: Mapping[str, Tensor], pairs: list[tuple[int, int]]
) -> tuple[list[Tensor], dict[tuple[int, int, int], Tensor]]:
    """Give a model's states and its blocks' residual Jacobians in float64, by plain autograd in the whole pass."""
    torch.set_default_dtype(torch.float64)
    hf, blocks = hf.double(), hf.get_submodule(path)
    leaves, states = {}, {}

    def enter(number: int) -> Any:
        def replace(block: nn.Module, args: tuple, kwargs: dict) -> tuple:
            name = None if args else "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
            stream = args[0] if args else kwargs[name]
            leaves[number] = stream.detach().clone().requires_grad_(True)
            return ((leaves[number], *args[1:]), kwargs) if args else (args, {**kwargs, name: leaves[number]})

        return replace

    def leave(number: int) -> Any:
        def read(block: nn.Module, args: tuple, output: Any) -> None:
            states[number] = (output if isinstance(output, Tensor) else output[0]).reshape(leaves[number].shape)

        return read

    for number, block in enumerate(blocks):
        block.register_forward_pre_hook(enter(number), with_kwargs=True)
        block.register_forward_hook(leave(number))
    with torch.enable_grad(), Wide():
        hf(**{name: value.double() if value.is_floating_point() else value for name, value in inputs.items()})
        found = {}
        for number in {0, len(blocks) - 1}:
            for end in {end for _, end in pairs}:
                rows = [torch.autograd.grad(y, leaves[number], retain_graph=True)[0][0] for y in states[number][0, end]]
                for start in (start for start, to in pairs if to == end):
                    J = torch.stack(rows)[:, start]
                    found[number, start, end] = J - torch.eye(len(J)) if start == end else J
    torch.set_default_dtype(torch.float32)
    return [leaves[0].detach(), *(states[number].detach() for number in range(len(blocks)))], found


def compared(model: cl.Model, hf: PreTrainedModel) -> dict[str, Any]:
    """Compare the library's states and Jacobians with those of the model as transformers loads it."""
    inputs = example(hf)
    trace = cl.trace(model, inputs[model.hf.main_input_name])
    end = trace.n_tokens - 1
    pairs = [(end, end), (end - 2, end)][: 1 + (end > 1)]
    states, wanted = reference(hf, model.blocks.path, inputs, pairs)
    hidden = trace.hidden.double()
    off = max(float((x - y).norm() / y.norm()) for x, (y,) in zip(hidden, states, strict=True))
    worst = 0.0
    for (block, start, to), J in wanted.items():
        try:
            found = trace.jacobian(block, start, to).dense().double()
        except UntrustworthyResultError:
            # A Jacobian that is rounding may be refused; nothing else may.
            found = torch.zeros_like(J) if J.norm() > 1e-6 * wanted[block, to, to].norm() else J
        worst = max(worst, float((found - J).norm() / J.norm().clamp_min(1e-300)))
    outcome = "exact" if worst < EXACT and off < SAME else "wrong"
    return {"outcome": outcome, "route": model.blocks.route, "exact_to": f"{worst:.0e}", "states_to": f"{off:.0e}"}


def in_one_line(error: BaseException, folder: str) -> str:
    """Write an error in one line; what the library says needs no name of its class."""
    said = str(error) if isinstance(error, CouplingError) else f"{type(error).__name__}: {error}"
    said = " ".join(said.replace(folder, "FOLDER").split())
    return said if len(said) <= 240 else f"{said[:236]} ..."


def built(mapping: str, kind: str, folder: str) -> PreTrainedModel:
    """Build and save a type's model, and see that transformers runs it; its text stack where the whole does not run."""
    reasons = []
    for alone in (False, True):
        doing = "not built"
        try:
            hf = build(mapping, kind, alone)
            hf.save_pretrained(folder)
            doing = "does not run"
            if not getattr(hf.config, "is_encoder_decoder", False):
                with torch.no_grad():
                    default(hf, folder)(**example(hf))
            return hf
        except Exception as error:
            reasons.append(f"{doing} ({in_one_line(error, folder)})")
    raise RuntimeError(reasons[0])


def tried(mapping: str, kind: str) -> dict[str, Any]:
    """Build, load and compare the model of one type."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            hf = built(mapping, kind, folder)
        except RuntimeError as error:
            return {"outcome": "not tried", "why": str(error)}
        row = {"class": type(hf).__name__}
        try:
            return row | compared(cl.load_model(folder), default(hf, folder))
        except CouplingError as error:
            return row | {"outcome": "refused", "why": in_one_line(error, folder)}
        except Exception as error:
            return row | {"outcome": "error", "why": in_one_line(error, folder)}


def work(mapping: str, kind: str, sender: Any) -> None:
    """Try one type, in a process of its own."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        sender.send(tried(mapping, kind))


def run(wanted: list[tuple[str, str]], jobs: int) -> Iterator[dict[str, Any]]:
    """Try types side by side, each in a process of its own, and give each answer as it comes."""
    # A fork has torch and transformers at hand; either takes seconds to import.
    context, waiting, running = multiprocessing.get_context("fork"), wanted[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            receiver, sender = context.Pipe(duplex=False)
            what = waiting.pop()
            process = context.Process(target=work, args=(*what, sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = process, what, time.monotonic()
        ready = connection.wait(list(running), timeout=1)
        late = [each for each, (_, _, since) in running.items() if time.monotonic() - since > SECONDS]
        for receiver in [*ready, *(each for each in late if each not in ready)]:
            process, what, _ = running.pop(receiver)
            answer = {"outcome": "not tried", "why": f"took longer than {SECONDS} s"}
            if receiver in ready:
                try:
                    answer = receiver.recv()
                except EOFError:
                    answer = {"outcome": "error", "why": "the process ended without an answer"}
            process.kill()
            process.join()
            yield dict(zip(COLUMNS, what, strict=False)) | answer


def version() -> str:
    """Name what an answer depends on: this program, the library and transformers."""
    files = [Path(__file__), NEEDED, *sorted(paths.PACKAGE.rglob("*.py"))]
    code = b"".join(file.read_bytes() for file in files) + transformers.__version__.encode()
    return hashlib.sha256(code).hexdigest()[:16]


def main(names: list[str]) -> None:
    """Try all types, or those that are named, and write the table once all have an answer."""
    if unknown := set(names) - {kind for _, kind in types()}:
        raise ParameterError(
            f"{', '.join(sorted(unknown))}: no such model type in transformers {transformers.__version__}"
        )
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.is_file() else []
    known = [row for row in map(json.loads, lines) if row["version"] == version()]
    found = {(row["mapping"], row["type"]): row for row in known if row["type"] not in names}
    wanted = [each for each in types() if each not in found and (not names or each[1] in names)]
    with KEPT.open("a", encoding="utf-8") as kept:
        for number, row in enumerate(run(wanted, os.cpu_count() or 1), start=1):
            found[row["mapping"], row["type"]] = row
            kept.write(json.dumps(row | {"version": version()}) + "\n")
            kept.flush()
            said = " ".join(str(row[name]) for name in COLUMNS if name in row)
            print(f"{number}/{len(wanted)} {said}", flush=True)
    if len(found) == len(types()):
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
            table.writeheader()
            table.writerows(found[each] | {"transformers": transformers.__version__} for each in types())
    for mapping in MAPPINGS:
        counted = Counter(row["outcome"] for row in found.values() if row["mapping"] == mapping)
        print(f"{mapping}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counted.items()))}")


if __name__ == "__main__":
    sys.exit(one_line(lambda: main(sys.argv[1:]), "stopped; the same command goes on"))
