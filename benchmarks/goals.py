"""Performance goals of the engine on two cores, and whether a run reached them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """A performance goal."""

    text: str
    wanted: float
    at_least: bool
    unit: str
    read: Callable[[dict[str, Any]], float]


def _case(run: dict[str, Any], part: str = "cases", **wanted: str | int) -> dict[str, Any]:
    found = [case for case in run[part] if wanted.items() <= case.items()]
    return found[0]  # of none, a LookupError


def _speed_up(shape: str, n: int) -> Callable[[dict[str, Any]], float]:
    return lambda run: _case(run, shape=shape, n=n)["ratio"]["total"]


def _worst(kind: str) -> Callable[[dict[str, Any]], float]:
    cases = [{"shape": shape, "n": n} for shape in ("gpt2-small", "pythia-410m") for n in (16, 64, 128)]
    return lambda run: min(_case(run, **case)[f"{kind}fraction_of_peak"] for case in cases)


def _flatness(run: dict[str, Any]) -> float:
    seconds = [_case(run, shape="gpt2-small", n=n)["seconds"]["ours"]["jacobians"] for n in (16, 64, 128)]
    return max(seconds) / min(seconds)


def _memory(run: dict[str, Any]) -> float:
    return _case(run, "memory", shape="pythia-410m", method="ours")["peak"] / 1e6


def _difference(whose: str) -> Callable[[dict[str, Any]], float]:
    return lambda run: sorted(case["agreement"][whose] for case in run["cases"] if whose in case["agreement"])[-1]


def _unformed(ratio: str) -> Callable[[dict[str, Any]], float]:
    return lambda run: _case(run, shape="llama3-8b", k=10)[ratio]


_LEAST = "(least of all cases)"
GOALS = (
    Goal("speed-up, d = 768, L = 12, n = 16", 12, True, "×", _speed_up("gpt2-small", 16)),
    Goal("speed-up, d = 768, L = 12, n = 64", 55, True, "×", _speed_up("gpt2-small", 64)),
    Goal("speed-up, d = 768, L = 12, n = 128", 100, True, "×", _speed_up("gpt2-small", 128)),
    Goal("speed-up, d = 1024, L = 24, n = 128", 80, True, "×", _speed_up("pythia-410m", 128)),
    Goal(f"Jacobians against all their products at the matrix peak {_LEAST}", 0.8, True, "", _worst("complete_")),
    Goal(f"Jacobians, fraction of the matrix peak: products that are done alone {_LEAST}", 0.8, True, "", _worst("")),
    Goal("Jacobians, slowest over fastest of n = 16, 64, 128 (d = 768)", 1.15, False, "", _flatness),
    Goal("memory above the weights, d = 1024", 150, False, " MB", _memory),
    Goal("a prompt of the embedded model", 0.1, False, " s", lambda run: run["embedded_prompt"]["seconds"]),
    Goal("coupling values: difference from the released method", 1e-5, False, "", _difference("metric_relative")),
    Goal("coupling values: the same difference, both in float64", 1e-5, False, "", _difference("both_in_float64")),
    Goal("coupling values: this library from float64", 1e-5, False, "", _difference("ours_from_float64")),
    Goal("coupling values: the released method from float64", 1e-5, False, "", _difference("released_from_float64")),
)

# Goals for a run of `unformed`.
UNFORMED_GOALS = (
    Goal("products over forming, d = 4096, K = 10", 0.3, False, "", _unformed("ratio")),
    Goal("products over forming with gates apart, as when the goal was set", 0.3, False, "", _unformed("ratio_apart")),
)


def judged(run: dict[str, Any], goals: tuple[Goal, ...] = GOALS) -> list[tuple[Goal, float, bool]]:
    """Read the figures of a run."""
    found = []
    for goal in goals:
        try:
            figure = goal.read(run)
        except LookupError:
            continue
        found.append((goal, figure, figure >= goal.wanted if goal.at_least else figure <= goal.wanted))
    return found
