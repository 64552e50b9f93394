"""Measurements on disk: one file each, found again by what was measured, never half written and never trusted blindly.

A measurement of one prompt is `results/<model>/measurements/<measure>-<hash>.safetensors`; the hash is over everything
that fixes its numbers: the model and its weights, the prompt and its tokens, the measure with its version and its
settings. `coupling_lib.sweep` writes and finds them; `store.listing()` is a data frame of what is there.
"""

from coupling_lib.store.contents import listing
from coupling_lib.store.files import StoreWarning, digest, place, read, write
from coupling_lib.store.joining import join_prompts

__all__ = ["StoreWarning", "digest", "join_prompts", "listing", "place", "read", "write"]
