"""Measurements on disk: one file each, found again by what was measured, never half written and never trusted blindly.

    from coupling_lib import store

    store.listing()                                     # a data frame of what is there
    store.join(measure="depth", model="nano-neox")      # one data set over all its prompts
    store.export("depth.csv", measure="depth")          # a table for other programs
    store.prune(damaged=True, outdated=True)            # remove what is of no more use

A measurement of one prompt is `results/<model>/measurements/<measure>-<hash>.safetensors`; the hash is over everything
that fixes its numbers: the model and its weights, the prompt and its tokens, the measure with its version and its
settings. `coupling_lib.sweep` writes and finds them. The same functions are commands of a shell:

    python -m coupling_lib.store list --model nano-neox
    python -m coupling_lib.store export depth.csv --measure depth
    python -m coupling_lib.store prune --damaged
"""

from coupling_lib.store.catalogue import export, join, listing, prune
from coupling_lib.store.files import StoreWarning, digest, place, read, write
from coupling_lib.store.joining import join_prompts, long_table

__all__ = [
    "StoreWarning", "digest", "export", "join", "join_prompts", "listing", "long_table", "place", "prune", "read",
    "write",
]  # fmt: skip
