"""Placement of a model's weights: on one device, on several cards, or with its blocks on disk.

A model is divided into its blocks and the rest (embeddings, final norm, output layer); the rest lies on one device.
`offload` carries the plan out.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks import weight_memory as memory
from coupling_lib.blocks.find import find_blocks
from coupling_lib.errors import ParameterError, shown
from coupling_lib.memory import give_back

DISK = "disk"  # as `from_pretrained` calls it
# Bytes from which a garbage collection, a tenth of a second, is worth its time.
_VERY_LARGE = 2**30


@dataclass(frozen=True)
class Plan:
    """Division of a model into its blocks and the rest: number of weights of each, and names of the parts."""

    path: str
    outside: int
    blocks: tuple[int, ...]
    others: tuple[str, ...]

    @property
    def largest(self) -> int:
        """Number of weights of the largest block."""
        return max(self.blocks)

    def bytes(self, dtype: torch.dtype) -> int:
        """Return the peak memory of the weights while the blocks stay on disk."""
        # A block that is measured has its weights in float32, whatever they are stored in.
        return self.outside * dtype.itemsize + self.largest * torch.float32.itemsize


def devices(device: str | torch.device | None) -> list[torch.device]:
    """Return the devices that may hold weights, the preferred one first, and refuse one that is not there."""
    if device is None or device == "auto":
        cards = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
        return sorted(cards, key=lambda card: card.index != torch.cuda.current_device()) or [torch.device("cpu")]
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda") or (chosen.type == "cpu" and chosen.index):
        raise ParameterError(f"device is {shown(device)}; it must be 'cpu', 'cuda', 'cuda:N' or 'auto'")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ParameterError(f"device is {device!r}, and {torch.cuda.device_count()} GPUs are visible; pass 'cpu'")
    return [chosen]


def plan(hf: PreTrainedModel) -> Plan:
    """Divide a model, or its skeleton, into its blocks and the rest."""
    found = find_blocks(hf)
    sizes = [_size(block) for block in found.modules]
    others = []
    owner, prefix = hf, ""
    for part in found.path.split("."):
        # All direct children: modules, parameters and buffers, but for the one that leads to the blocks.
        here = (*owner.named_children(), *owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
        others += [prefix + name for name, _ in here if name != part]
        owner, prefix = owner.get_submodule(part), f"{prefix}{part}."
    return Plan(found.path, _size(hf) - sum(sizes), tuple(sizes), tuple(others))


@dataclass(frozen=True)
class Placing:
    """Devices of a model's weights, and the number of blocks of fresh weights that are drawn side by side."""

    device: torch.device
    division: Plan
    blocks: tuple[torch.device | str, ...] = ()  # the card of each, or "disk"; none where all is on `device`
    at_once: int = 1

    @property
    def on_disk(self) -> bool:
        """True if the blocks stay on disk."""
        return DISK in self.blocks

    def device_map(self) -> dict[str, torch.device | str]:
        """Return the device of each part, in the form that `from_pretrained` takes."""
        blocks = {f"{self.division.path}.{number}": place for number, place in enumerate(self.blocks)}
        return blocks | dict.fromkeys(self.division.others, self.device)


def choose(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    precision: str,
    arguments: Mapping[str, Any],
    devices: Sequence[torch.device],
    name: str,
    *,
    spread: bool,
    untrained: bool,
    budget: int | None,
) -> Placing:
    """Choose the placement of a model: on the first device, on all of them, or blocks on disk; or refuse the model."""
    skeleton = memory.skeleton(model_class, config)
    need, division, device = memory.bytes_needed(skeleton), plan(skeleton), devices[0]
    on_disk = None if "quantization_config" in arguments else division.bytes(arguments["dtype"])
    # A block whose weights are not float32 is measured on a float32 copy.
    copy = 0 if precision == "float32" else 4 * division.largest
    # Next to the weights: the Jacobians of all blocks, and activations, which take less than a block.
    width = getattr(config.get_text_config(), "hidden_size", 0)
    beside = copy if budget else copy + 4 * (len(division.blocks) * width**2 + division.largest)
    total = need[precision] + beside
    if total >= _VERY_LARGE:
        # A deleted model is held by reference cycles; both models would be in memory.
        gc.collect()
        give_back()
    free = budget or memory.available(device)
    stays, cards, message = False, None, ""
    if len(devices) > 1 and (spread or total > free):
        outside = division.outside * arguments["dtype"].itemsize
        each = (need[precision] - outside) / sum(division.blocks)
        rooms = [min(budget or sys.maxsize, memory.available(card)) - beside for card in devices]
        cards = distribute([outside, *(each * size for size in division.blocks)], rooms)
    if cards is not None:
        if not spread:
            message = f"one card may hold {memory.gb(free)}; its blocks are spread over {len(set(cards))} cards"
    elif budget is not None and total > budget:
        memory.check_offloaded(total, on_disk, budget, precision, device, name)
        stays = True
    elif budget is None and on_disk is not None and on_disk < need[precision] + copy and on_disk <= free < total:
        stays = True
        read = f"its blocks stay on disk and are read one at a time, the rest takes {memory.gb(on_disk)}"
        message = f"{memory.gb(free)} are free on {device}; {read}"
    else:
        memory.check(need, precision, device, name, division.bytes(torch.bfloat16))
    if message:
        print(f"{name}: measuring it in {precision} needs {memory.gb(total)}, and {message}", flush=True)
    main, *blocks = [devices[card] for card in cards] if cards else [device] + [DISK] * stays * len(division.blocks)
    held = need[precision] if main.type == "cpu" and not blocks else 4 * division.outside
    # A block that is drawn takes its float32 weights, and as much again to store them in another format.
    host = memory.available(torch.device("cpu")) if untrained else 0
    room = (min(budget or host, host) - held) // (8 * division.largest)
    if untrained and (blocks or main.type != "cpu"):
        memory.check_drawn(held + 8 * division.largest, host, name)
    return Placing(main, division, tuple(blocks), max(1, min(room, torch.get_num_threads())))


def distribute(sizes: Sequence[float], rooms: Sequence[float]) -> list[int] | None:
    """Assign parts to cards, in order and all cards filled alike; None if the cards cannot hold them."""
    rooms = [max(0.0, room) for room in rooms]
    # Parts are whole: the share to which cards are filled grows from this least one until no part is left over.
    filled = sum(sizes) / max(1.0, sum(rooms))
    while filled < 1.02:
        card, left, places = 0, [room * min(1.0, filled) for room in rooms], []
        filled *= 1.02
        for size in sizes:
            while card < len(left) and size > left[card]:
                card += 1
            if card == len(left):
                break
            left[card] -= size
            places.append(card)
        else:
            return places
    return None


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
