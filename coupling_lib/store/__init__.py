"""Measurements on disk: one file each, named by a hash of the measurement's key, written atomically and checked.

The name is `results/<model>/measurements/<measure>-<hash>.safetensors`, the hash over all that determines the numbers.
"""

from coupling_lib.store.files import StoreWarning, digest, listing, place, read, write
from coupling_lib.store.joining import join_prompts

__all__ = ["StoreWarning", "digest", "join_prompts", "listing", "place", "read", "write"]
