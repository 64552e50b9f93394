"""Transformer block coupling, measured.

    import coupling_lib as cl

    model = cl.load_model("nano-neox")
    trace = cl.trace(model, "What is the capital of France? The capital is")
    J_1, J_2 = trace.jacobian(block=4), trace.jacobian(block=8)  # residual Jacobians at the last token
    cl.coupling(J_1, J_2, k=10)            # coupling (1: J_2's singular vectors diagonalise J_1) and its chance level

Names are loaded when they are first used, so that importing the package takes no time.
"""

import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Any

# In a notebook kernel without widgets, tqdm warns at import and then draws plain bars, which are wanted here.
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = version("coupling_lib")

_HOMES = {
    "models.model": ("Model",),
    "models.storages": ("wrap_model",),
    "models.load": ("load_model",),
    "models.measuring": ("measuring",),
    "jacobian.tracing": ("Trace",),
    "inputs.traced": ("trace",),
    "jacobian.operator": ("BlockJacobian",),
    "jacobian.derivatives": ("block_jacobians",),
    "jacobian.lens": ("lens",),
    "svd.triplets": ("top_triplets",),
    "svd.shared": ("shared",),
    "inputs.prompts": ("load_prompts", "Prompt"),
    "metrics.coupling": ("coupling_matrix", "miscoupling", "mismatch"),
    "metrics.variants": ("VARIANTS", "measure_variants"),
    "metrics.trajectory": ("line_shape_score", "expodistance", "equidistance"),
    "inputs.prompt_arguments": ("inputs_for",),
    "measures.common": ("measurement",),
    "store.sweep": ("sweep",),
    "store.lens_files": ("read_lens",),
    "measures.depth": ("measure_depth",),
    "datasets.summaries": ("depth_summary",),
    "measures.random_bases": ("null_of",),
    "measures.pair": ("coupling",),
    "measures.precision": ("measure_precision",),
    "datasets.parts": ("shared_part",),
    "measures.lens": ("measure_lens",),
    "measures.tokens": ("measure_tokens",),
    "measures.prompts": ("measure_prompts",),
    "measures.trajectories": ("measure_trajectories",),
    "measures.emergence": ("measure_emergence",),
    "measures.spectra": ("measure_spectra",),
    "measures.dynamics": ("measure_dynamics",),
    "measures.perturbation": ("measure_perturbation",),
    "jacobian.regulariser": ("coupling_loss",),
    "measures.vision": ("measure_relations",),
    "inputs.images": ("load_images",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_ROOMS = ("datasets", "svd", "blocks", "models", "inputs", "jacobian", "store", "metrics", "measures")
_MODULES = {name: name for name in _ROOMS} | {"registry": "models.registry", "precision": "blocks.precision"}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"coupling_lib.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"coupling_lib.{_MODULES[name]}")
    raise AttributeError(f"module 'coupling_lib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_MODULES])
