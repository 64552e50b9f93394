"""Free memory of a device, limits of a container included."""

from pathlib import Path

import psutil
import torch

CGROUP = Path("/sys/fs/cgroup")


def available(device: torch.device) -> int:
    """Return the free memory of a device in bytes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # torch's cache of a deleted model counts as used
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    try:
        limit = int((CGROUP / "memory.max").read_text())
        # Cached file pages count as used but are given back when memory runs short.
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        used = int((CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
    except (OSError, ValueError, KeyError):
        return free
    return max(0, min(free, limit - used))
