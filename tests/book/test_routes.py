"""The book's table of model families: made from the models that are tested, and true of them."""

import re

import families
import pytest
import routes
from families import loaded, named

SOME = {
    "llama": ("attention", "no"),
    "bloom-alibi": ("cache", "attention alone"),
    "mamba2": ("state", "no"),
    "qwen3-next": ("attention and state", "no"),
    "falcon-h1": ("state", "attention alone"),
    "recurrent-gemma": ("attention and sequence", "in its recurrent blocks"),
    "rwkv": ("sequence", "yes"),
    "vit": ("attention", "no"),
}


def test_table_lists_the_found_route_of_each_family(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", [named(name) for name in SOME])
    rows = re.findall(r"^\| ([\w.-]+) \| `([\w-]+)` \| ([\w ]+) \| ([\w ]+) \|$", routes.families_page(), re.MULTILINE)
    assert {name: (route, grows) for name, _, route, grows in rows} == SOME
    assert [kind for name, kind, *_ in rows if name in ("falcon-h1", "rwkv")] == ["falcon_h1", "rwkv"]


@pytest.mark.parametrize(("name", "block", "ratio"), [("mamba", 0, 1), ("lfm2", 1, 1), ("rwkv", 1, 3)])
def test_arithmetic_is_counted_at_the_last_token(name, block, ratio):
    model = loaded(named(name))
    short, long = (routes.arithmetic(model, block, n) for n in (12, 36))
    assert long == pytest.approx(ratio * short, rel=0.05) and short > 0
