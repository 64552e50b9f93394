"""Loading a model by alias, Hugging Face id or folder; no code of a repository is run, and no pickle opened."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoImageProcessor, PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor

from coupling_lib.blocks import packed
from coupling_lib.blocks import placing as places
from coupling_lib.blocks import precision as precisions
from coupling_lib.blocks import weight_memory as memories
from coupling_lib.blocks.attention_choice import quiet
from coupling_lib.errors import (
    CouplingError,
    ModelUnavailableError,
    ParameterError,
    UnsupportedModelError,
    check_whole,
    shown,
)
from coupling_lib.memory import ran_out
from coupling_lib.models import architecture, dequantised, gguf_weights, sources, tokenizers
from coupling_lib.models import untrained as fresh_weights
from coupling_lib.models.digests import load_digest
from coupling_lib.models.hub import PROCESSOR
from coupling_lib.models.model import Model
from coupling_lib.models.storages import prepare_model
from coupling_lib.modes import exclusive


@exclusive
def load_model(
    name: str | Path,
    *,
    precision: str = "float32",
    untrained: bool = False,
    seed: int = 0,
    revision: str | None = None,
    device: str | torch.device | None = None,
    memory: str | int | None = None,
) -> Model:
    """Load a model so that its blocks can be differentiated.

    Args:
        name: alias of `data/models.csv` ("llama3-8b"), Hugging Face id ("organisation/name"), local folder, or GGUF
            file, which becomes dense: a path, a folder with one, or "organisation/name/file.gguf".
        precision: how the weights are stored: "float32", "bfloat16", "float16", "nf4", "fp4" or "int8". Jacobians
            are formed in float32 in any case.
        untrained: use the same configuration with freshly initialised weights; no weights are downloaded. The
            weights are drawn in float32 on the CPU, each block from a seed of its own, and then stored in `precision`,
            so one seed gives one model, however it is placed.
        seed: seed of that initialisation; of an embedded model, the seed of its training gives its step 0.
        revision: branch, tag or commit of the hub ("step128" of a Pythia model), or training step of an
            embedded model ("step0", "step316").
        device: "cpu", "cuda", "cuda:1" ..., or "auto", which spreads whole blocks over all visible GPUs. By default
            one GPU if there is one, and all if the model needs more than one holds, which is reported in one line. Each
            block is measured on its own card. Tested with simulated cards only: no machine with several was available.
        memory: maximum memory of the weights on a device at any moment, "8GiB", "500MB" or a number of bytes. A
            model that needs more on all of them, counting the float32 copy of the block being measured, keeps its
            blocks in their files and reads one at a time; the numbers are the same bit for bit. Activations and
            Jacobians come on top. By default it is the free memory, less room for these; if blocks stay on
            disk then, this is reported in one line.

    Returns:
        the model, with `requires_grad` off everywhere.

    Raises:
        ParameterError: if an argument is of the wrong type or out of range.
        ModelUnavailableError: if the files are unavailable, are damaged or do not fit into memory.
        UnsupportedModelError: if the architecture needs remote code, or its blocks cannot be measured.

    Example:
        >>> model = load_model("nano-neox", revision="step0")
        >>> model.n_blocks, model.d_model
        (12, 96)
    """
    if not isinstance(untrained, bool):  # the text "false" would be true
        raise ParameterError(f"untrained is {untrained!r}; it must be True or False")
    check_whole("seed", seed, 0, 2**63 - 1)
    if revision is not None and (not isinstance(revision, str) or not revision.strip()):
        raise ParameterError(f"revision is {shown(revision)}; it must be a branch, tag, commit or step, or None")
    budget = memories.parse(memory)
    arguments = precisions.loading_arguments(precision)
    devices = places.devices(device)
    origin = sources.locate(name, revision)
    config = architecture.read_config(origin.folder, origin.name)
    family = architecture.model_class(config, origin.name)
    fresh = seed if untrained else origin.started_from if origin.revision == "step0" else None
    with quiet(), _explained(origin, precision), packed.quantising_experts("quantization_config" in arguments):
        how: dict[str, Any] = {"spread": device == "auto", "untrained": fresh is not None, "budget": budget}
        placing = places.choose(family, config, precision, arguments, devices, origin.name, **how)
        read = partial(_read, family, origin.name, placing.device, arguments)
        if fresh is not None:
            start = fresh == origin.started_from
            hf = fresh_weights.initialise(family, config, fresh, placing, arguments, read, start)
        else:
            method = dequantised.method_of(origin.folder, origin.name)
            sources.fetch_weights(origin)
            stored = method and dequantised.tensors(origin.folder, method, origin.name)
            if origin.gguf:
                stored = gguf_weights.tensors(origin.gguf, memories.skeleton(family, config))
            hf = dequantised.load(read, origin.folder, config, placing, arguments["dtype"], stored)
        reads = family.main_input_name
        tokenizer = tokenizers.load(origin.tokenizer, origin.name) if reads == "input_ids" else None
        processor = _processor(origin.folder) if reads == "pixel_values" else None
        about = (origin.name, origin.source, origin.revision, precision, untrained, fresh)
        return replace(prepare_model(hf, tokenizer, *about, processor=processor), load_digest=load_digest(hf))


def _read(
    family: type[PreTrainedModel], name: str, place: torch.device, arguments: dict, folder: Path, **more: Any
) -> PreTrainedModel:
    """Read weights from a folder, and refuse a folder that lacks some."""
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    asked = {"output_loading_info": True, "ignore_mismatched_sizes": True, **safe, **arguments, **more}
    if place.type != "cpu" or "quantization_config" in arguments:
        asked.setdefault("device_map", {"": place})
    hf, report = family.from_pretrained(None if "state_dict" in more else folder, **asked)
    architecture.refuse_other_shapes(report["mismatched_keys"], name)
    # transformers initialises missing weights at random and goes on: the model would be measured half untrained.
    if missing := sorted(report["missing_keys"]):
        lack = f"lack {len(missing)} of the model's tensors ({missing[0]}, ...)"
        raise ModelUnavailableError(f"the weights in {name!r} {lack}; take the complete set of files")
    architecture.refuse_further_blocks(hf, report["unexpected_keys"], name)
    for parameter in hf.parameters():
        if (well := memories.aligned(weight := parameter.data)) is not weight:
            parameter.data = well
    return hf


def _processor(folder: Path) -> BaseImageProcessor | None:
    """Read a folder's image processor; None if it has none."""
    if not (folder / PROCESSOR).is_file():
        return None
    try:
        # The other backend needs torchvision.
        return AutoImageProcessor.from_pretrained(folder, trust_remote_code=False, local_files_only=True, backend="pil")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        raise ModelUnavailableError(
            f"{PROCESSOR} in {str(folder)!r} cannot be read ({shown(str(error), 200)}); fetch it again, or take it "
            "out of the folder and normalise the pictures yourself"
        ) from error


@contextmanager
def _explained(origin: sources.Source, precision: str) -> Generator[None]:
    """Raise any error while weights are read as one line with the next step."""
    try:
        yield
    except CouplingError:
        raise
    except SafetensorError as error:
        why = f"the weights of {origin.name!r} are damaged or truncated ({error})"
        raise ModelUnavailableError(f"{why}; delete {origin.root} and fetch them anew") from error
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        if ran_out(error):
            raise ModelUnavailableError(
                f"memory ran out while {origin.name!r} was loaded in {precision}; pass precision='nf4', pass "
                "memory='2GiB' or so to leave its blocks on disk, or choose a smaller model"
            ) from error
        raise UnsupportedModelError(
            f"{origin.name!r} cannot be loaded by transformers {transformers.__version__} "
            f"({type(error).__name__}: {message}); check that its configuration, weights and tokenizer belong together"
        ) from error
