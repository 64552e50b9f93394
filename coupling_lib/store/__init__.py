"""Measurements on disk: one file each, found again by what was measured, never half written and never trusted blindly.

The name is `results/<model>/measurements/<measure>-<hash>.safetensors`, the hash over all that fixes the numbers.
"""

from coupling_lib.store.files import StoreWarning, digest, listing, place, read, write
from coupling_lib.store.joining import join_prompts

__all__ = ["StoreWarning", "digest", "join_prompts", "listing", "place", "read", "write"]
