"""The estimate of the paper's own measurement: the count for one model by hand, and that the table adds up."""

import json
import re

import pytest
import scale
import yaml

from coupling_lib import paths
from coupling_lib.models.registry import lookup


def test_operations_of_two_models_match_hand_counts():
    # 32 blocks of width 4,096 with 8e9 weights; 1,200 prompts; K = 10, and Krylov bases of 180 columns.
    found = scale.cost(lookup("llama3-8b"))
    assert found.formed == pytest.approx(2 * 4096 * 8e9 * 1200)
    assert found.products == pytest.approx(2 * (2 * 180 + 32 * 10) * 8e9 * 1200)
    assert found.hours == pytest.approx(2 * 4096 * 8e9 * 1200 / scale.measured_rate() / 3600)
    assert found.fetched == 16e9 and found.held == 8e9 * 4.5 / 8 + 4 * 8e9 / 32
    found = scale.cost(lookup("gpt2"))  # a narrow model is formed without its embeddings
    assert found.formed == pytest.approx(2 * 768 * min(0.124e9, 12 * 20 * 768**2) * 1200)
    assert found.hours == pytest.approx(found.formed / scale.measured_rate() / 3600)


def test_table_sums_the_38_models_of_figure_1a():
    page = scale.scale_page()
    rows, (total,) = re.findall(r"^\| `.*", page, re.MULTILINE), re.findall(r"\| all 38 \|.*", page)
    assert len(rows) == 38
    for column in (4, 5, 7):
        numbers = [float(row.split("|")[column].replace(",", "")) for row in rows]
        assert float(total.split("|")[column].replace(",", "")) == pytest.approx(sum(numbers), rel=2e-2)


def test_one_prompt_takes_what_is_counted_by_hand():
    line, largest = re.findall(r"^\| (?:32|80) .*", scale.one_prompt_page(), re.MULTILINE)
    cells, largest = ([cell.strip() for cell in row.split("|")[1:-1]] for row in (line, largest))
    weights = 12 * 4096**2 * 32
    assert float(cells[2]) == pytest.approx(2 * 4096 * weights / 1e12, rel=1e-2)
    assert cells[3] == f"{2 * 4096 * weights / scale.measured_rate() / 60:.1f} min"
    held = [(share * weights + 4 * weights / 32) / 1e9 for share in (4.5 / 8, 2, 4)]
    assert cells[4:6] == [f"{2 * 4096 * weights / scale.card_rate():.1f} s", "< 1 s"]
    assert [float(cell) for cell in cells[6:]] == pytest.approx(held, abs=0.06)
    work, rate = 2 * 12 * 8192**3 * 80, scale.card_rate()
    assert [float(cell.split()[0]) for cell in largest[4:6]] == pytest.approx([work / rate, work / rate / 8], rel=0.03)


def test_planned_rate_is_that_of_the_slowest_prompt():
    plan = yaml.safe_load((paths.ROOT / "workflow" / "atlas.yaml").read_text(encoding="utf-8"))
    run = json.loads((paths.ROOT / "benchmarks" / "latest_gpu.json").read_text(encoding="utf-8"))
    weights = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # of Llama-3-8B's attention and its MLP
    slowest = max(p["seconds"]["total"] for p in run["prompts"] if p["arithmetic"] == "float32")
    assert scale.card_rate() == pytest.approx(2 * 4096 * weights * 32 / slowest)
    assert plan["flops"] == pytest.approx(scale.card_rate(), rel=0.02)
