"""How long a measurement takes and how far it is, in plain lines: they show in a notebook and in a log alike.

Nothing is guessed: what is expected follows from the first block that was measured, then from whole prompts. What is
over in less than half a minute says nothing.
"""

import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

clock = time.monotonic

# Seconds: what is expected to take less is not spoken of, and lines about the progress are so far apart at least.
_WORTH, _APART = 20.0, 30.0


def duration(seconds: float) -> str:
    """Write a time for readers."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class Report:
    """What is said about one measurement of many prompts."""

    def __init__(self, name: str, n_blocks: int, n_prompts: int, missing: Callable[[], int], needs: Callable[[], str]):
        self.name, self.n_blocks, self.n_prompts = name, n_blocks, n_prompts
        self.missing, self.needs = missing, needs
        self.to_do: int | None = None
        self.done, self.spent = 0, 0.0
        self.said: float | None = None
        self.start = self.first = 0.0
        self.under_way, self.blocks = False, 0.0

    @contextmanager
    def of_a_prompt(self) -> Generator[None]:
        """Take the time of a prompt."""
        self.under_way, self.blocks, self.start = True, 0.0, clock()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self.under_way = False
        self.done, self.spent = self.done + 1, self.spent + clock() - self.start
        self._speak()

    @contextmanager
    def of_a_block(self, share: float) -> Generator[None]:
        """Take the time of a block, or of such a share of what is done for it."""
        self.first = self.first if self.blocks else clock()
        try:
            yield
        finally:
            self.blocks += share
            # A measure may take the blocks more than once.
            if self.under_way and self.blocks < self.n_blocks + 0.5:
                self._speak()

    def _speak(self) -> None:
        now = clock()
        elapsed = self.spent + (now - self.start if self.under_way else 0.0)
        block = (now - self.first) / self.blocks if self.blocks else 0.0
        each = self.spent / self.done if self.done else self.first - self.start + self.n_blocks * block
        if each * self.n_prompts < _WORTH:
            return
        if self.to_do is None:
            self.to_do = max(self.missing(), self.done + self.under_way)
        whole = each * self.to_do
        if self.said is None:
            if whole < _WORTH:
                return
            rate = f"{duration(each)} a prompt" if self.done else f"{block:.1f} s a block"
            kept = f", {self.n_prompts - self.to_do} of them in the store already" * (self.n_prompts > self.to_do)
            fewer = f"; 1 prompt takes about {duration(each)}" if self.to_do > 1 else ""
            size = f"{self.n_blocks} blocks, {self.n_prompts} prompt{'s' * (self.n_prompts != 1)}{kept}"
            long = f"about {duration(whole)} in all ({rate}, measured on the first)"
            print(f"{self.name}: {size}; {long}; {self.needs()}{fewer}", flush=True)
        elif now - self.said < max(_APART, whole / 50) or self.done >= self.to_do:
            return
        else:
            block_of = f", block {math.ceil(self.blocks - 0.01)} of {self.n_blocks}" if self.under_way else ""
            number = min(self.done + 1, self.to_do) if self.under_way else self.done
            verb = "prompt" if self.under_way else "measured: prompt"
            left = duration(max(whole - elapsed, 0.0))
            print(f"{self.name}: {verb} {number} of {self.to_do}{block_of}; about {left} left", flush=True)
        self.said = now


_current: ContextVar[Report | None] = ContextVar("report", default=None)


def block(share: float = 1.0) -> AbstractContextManager[None]:
    """Report to a running progress bar that a block, or such a share of its work, is measured within."""
    report = _current.get()
    return nullcontext() if report is None else report.of_a_block(share)
