"""The key of a stored measurement: all that determines its numbers.

Weights, adapters among them, are identified by content, a measure by its version (see `common.measurement`), or if
it has none by the text of its file and the values that it is bound to, as is a user's module. A hook's function is
not part of the weights: a model with hooks has no key.
"""

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from coupling_lib.blocks.makeup import makeups, modifications, without_settings
from coupling_lib.errors import CouplingError, ParameterError
from coupling_lib.inputs.prompt_arguments import UpToWidth, prompt_inputs, prompt_tokens
from coupling_lib.models import adapters, sources
from coupling_lib.models.digests import LIBRARIES, as_bytes, contents_text, description, is_own, load_digest
from coupling_lib.models.model import Model
from coupling_lib.provenance import model_identity

# Parts of a configuration that describe its origin, not the model's function.
_ORIGIN = ("_name_or_path", "_commit_hash", "transformers_version")


def measurement_key(measure: Callable[..., Any], model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key of a measurement, all but its prompt."""
    function, asked = _settings(measure, settings)
    # Defaults limited to a model's width have the same key as the same numbers passed explicitly.
    fitting = {name: value.of(model) for name, value in asked.items() if isinstance(value, UpToWidth)}
    plain = {name: _plain(name, value) for name, value in (asked | fitting).items()}
    # A wrapper by `functools.wraps` carries the measure's version, and may return other numbers.
    version = None if hasattr(function, "__wrapped__") else getattr(function, "version", None)
    code = _source(function) + contents_text(function) if version is None else ""
    return model_identity(model) | {
        "weights": fingerprint(model),
        "measure": getattr(function, "__name__", type(function).__name__).removeprefix("measure_"),
        "version": 1 if version is None else version,
        "code": code and hashlib.sha256(code.encode()).hexdigest()[:12],
        "settings": plain,
    }


def plain_settings(measure: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a measure's settings in the form of a key, defaults included; all that no model decides."""
    return {name: _plain(name, value) for name, value in _settings(measure, settings)[1].items()}


def prompt_key(model: Model, given: str | torch.Tensor) -> str:
    """Return the hash of a prompt: its text with the token ids of the model's tokenizer, or the tensor."""
    (given,) = prompt_inputs(given)
    if isinstance(given, str):
        ids = prompt_tokens(given, model.tokenizer) if model.tokenizer is not None else []
        content = json.dumps([given, ids]).encode()
    else:
        # Token ids are the same in every integer dtype.
        values = given.detach().cpu()
        values = values if values.is_floating_point() else values.long()
        content = f"{values.dtype}{tuple(values.shape)}".encode() + as_bytes(values).tobytes()
    return hashlib.sha256(content).hexdigest()[:20]


def _settings(measure: Callable[..., Any], settings: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function that measures, and all of its settings that are not None."""
    function, fixed = measure, {}
    while isinstance(function, functools.partial):
        function, fixed = function.func, function.keywords | fixed
    bound = inspect.signature(function).bind_partial(None, None, **(fixed | dict(settings)))
    bound.apply_defaults()
    # A setting that is None has no effect: a measure may get a new one and keep its keys.
    return function, {name: value for name, value in list(bound.arguments.items())[2:] if value is not None}


def fingerprint(model: Model) -> str:
    """Return the hash of a model's weights and configuration."""
    if found := modifications(model.hf):  # its output is not determined by its weights
        place = f"{found[0][0] or 'the whole'} of {model.name}"
        raise ParameterError(f"a hook stands on {place}, and the store knows a model by its weights alone")
    memory = model.source.startswith("memory")  # its configuration may not describe its modules
    made = (makeups(model.blocks.modules), model.blocks.makeup)
    # Settings and buffers of those are in the key; functions of other classes or modules are not.
    now, then = map(without_settings, made) if memory else made
    if now != then:
        raise ParameterError(f"a module, setting or function of {model.name} was changed: wrap it again, to be kept")
    if not memory and load_digest(model.hf) != model.load_digest:
        raise ParameterError(f"a setting or buffer of {model.name} was changed: wrap it again, to be kept")
    # All parameters and buffers in memory are hashed. For a model with blocks on disk, the files represent the
    # rest: by commit or digest if their source has one, else by their names, sizes and modification times.
    config = {name: value for name, value in model.hf.config.to_dict().items() if name not in _ORIGIN}
    total = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    total.update(adapters.settings(model.hf).encode())
    tensors = model.hf.state_dict()
    if memory:
        tensors |= dict(model.hf.named_buffers())
        total.update(description(model.hf).encode())
        own = [part for part in model.hf.modules() if not type(part).__module__.startswith(LIBRARIES)]
        total.update(repr([contents_text(part) for part in own]).encode())
        kinds = (base for kind in map(type, own) for base in kind.__mro__ if base is kind or is_own(base))
        for kind in dict.fromkeys(kinds):
            total.update((_source(getattr(kind, "forward", kind)) + contents_text(kind)).encode())
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            total.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            total.update(as_bytes(tensor))
    if model.offloaded:
        total.update(_files(model).encode())
    return total.hexdigest()[:20]


def _files(model: Model) -> str:
    if model.seed is not None:
        # The files are temporary; configuration and seed determine them.
        return f"drawn by block from seed {model.seed}"
    if model.source.rpartition("@")[0] and not model.source.startswith("embedded:"):
        return model.source  # a commit of the hub never changes
    if re.search(r"sha256 [0-9a-f]{12}\)$", model.source):
        return model.source  # checked against the file when it was loaded
    try:
        folder = sources.locate(model.name, model.revision).folder
        stats = [(path.name, path.stat()) for path in sorted(folder.glob("*.safetensors"))]
    except (CouplingError, OSError) as error:
        raise ParameterError(f"the files of {model.name!r} cannot be found any more ({error})") from None
    return json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def _plain(name: str, value: Any) -> Any:
    """Convert a setting to a form that JSON can write, the same for equal settings."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(name, part) for key, part in value.items()}
    if isinstance(value, list | tuple | range | np.ndarray):
        return [_plain(name, part) for part in value]
    if isinstance(value, str | int | float):
        return value
    raise ParameterError(f"the setting {name!r} is a {type(value).__name__}, not a number, a text or several of these")


def _source(function: Callable[..., Any]) -> str:
    """Return the text that identifies a measure without a version, or a user's module."""
    try:
        module = inspect.getmodule(function)
        # A notebook's functions have no file; each is identified by its own text.
        written_in_file = module is not None and getattr(module, "__file__", None)
        return inspect.getsource(module if written_in_file else function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return repr((code.co_code, code.co_consts)) if code else repr(type(function))
