"""Two ways of computing something: in turns, compared, and set as a row."""

import pytest
import torch

from benchmarks import other_tables, peers


def test_two_ways_take_turns_and_are_compared():
    order = []

    def way(name, seconds, value):
        return lambda: (order.append(name) or seconds, torch.full((2,), value))

    found = peers.in_turns(way("ours", 2.0, 4.0), way("theirs", 6.0, 5.0), rounds=3)
    assert order == ["ours", "theirs", *["theirs", "ours"] * 3]
    assert found["seconds"] == {"theirs": 6.0, "ours": 2.0} and found["ratios"] == [3.0] * 3
    assert found["difference"] == pytest.approx(0.2)
    assert set(found["memory"]) == {"ours", "theirs"} and min(found["memory"].values()) >= 0


def test_the_released_method_is_compared_by_values():
    found = peers.depth_by_released("tiny", rounds=1)
    assert found["difference"] < 1e-4 and len(found["ratios"]) == 1
    assert found["what"] == "coupling across depth, scaled from 4 of 4 blocks"


def test_a_row_holds_every_ratio():
    case = {"what": "one Jacobian", "peer": "curvlinops 3.0.1", "shape": "tiny", "ratios": [6.75, 11.02]}
    case |= {"seconds": {"theirs": 1.5, "ours": 0.2}, "memory": {"theirs": 90e6, "ours": 2e6}, "difference": 4e-7}
    machine = {"date": "2026-11-29", "gpu": None, "cpu": "CPU", "cores": 2, "threads": 2, "memory_gib": 23.5}
    machine |= {"load_average": 0.1, "versions": "torch 2.13.0", "command": "python -m benchmarks.peers"}
    page = "\n".join(other_tables.peers_table({"machine": machine, "cases": [case]}))
    times, memory = "1.5\xa0s | 200\xa0ms | 6.75, 11", "90\xa0MB | 2\xa0MB"
    assert f"| one Jacobian | tiny | curvlinops 3.0.1 | {times} | {memory} | 4\xa0×\xa010⁻⁷ |" in page
