"""Every model type of transformers: representatives are compared, the committed table is whole, and a run goes on."""

import csv
import json
import os
import time
from collections import Counter
from types import SimpleNamespace

import every_family as families
import pytest
import tiny_families
import torch
import transformers
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError

# Some representatives normalise their stream.
pytestmark = pytest.mark.filterwarnings("ignore::coupling_lib.errors.PostNormWarning")
# One of each route and mapping, with experts, and with an attention that depends on its name.
REPRESENTATIVES = {
    ("causal", "llama"): ("LlamaForCausalLM", "attention"),
    ("causal", "gpt_neo"): ("GPTNeoForCausalLM", "cache"),
    ("causal", "mamba"): ("MambaForCausalLM", "state"),
    ("causal", "rwkv"): ("RwkvForCausalLM", "sequence"),
    ("causal", "mixtral"): ("MixtralForCausalLM", "attention"),
    ("masked", "bert"): ("BertForMaskedLM", "attention"),
    ("image classification", "clip"): ("CLIPForImageClassification", "attention"),
    ("image and text", "paligemma"): ("PaliGemmaForConditionalGeneration", "sequence"),
}


def committed() -> list[dict[str, str]]:
    return list(csv.DictReader(families.TABLE.read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize(("mapping", "kind"), REPRESENTATIVES)
def test_representatives_are_exact(mapping, kind):
    row = families.tried(mapping, kind)
    assert (row["outcome"], row["class"], row["route"]) == ("exact", *REPRESENTATIVES[mapping, kind])
    assert float(row["exact_to"]) < families.EXACT and float(row["states_to"]) < families.SAME
    assert float(row["central_to"]) < 1e-6  # what autograd gives is the derivative
    assert torch.get_default_dtype() == torch.float32


NOT_MEASURED = {
    ("masked", "bart"): ("refused", "'FOLDER' is an encoder-decoder (bart)"),
    ("masked", "yoso"): ("refused", ""),
    ("masked", "mra"): ("not tried", "does not run (NotImplementedError: attention has no effect on this machine"),
    ("image and text", "kosmos-2"): ("not tried", "does not run (ValueError: "),
}


@pytest.mark.parametrize(("mapping", "kind"), NOT_MEASURED)
def test_types_not_measured_carry_a_reason(mapping, kind):
    row = families.tried(mapping, kind)
    outcome, why = NOT_MEASURED[mapping, kind]
    assert row["outcome"] == outcome and row["why"].startswith(why)
    assert outcome == "refused" or row.keys() == {"outcome", "why"}


def test_another_model_than_the_reference_is_wrong(tmp_path):
    """The reference does not go the way of what it judges: with other weights the two differ."""
    hf = families.built("causal", "llama", str(tmp_path))
    model, other = cl.load_model(tmp_path), families.default(hf, str(tmp_path))
    with torch.no_grad():
        other.model.layers[2].mlp.down_proj.weight[0] *= 1.01
    row = families.compared(model, other)
    assert row["outcome"] == "wrong" and float(row["exact_to"]) > 1e-4 and float(row["states_to"]) > 1e-5


def test_table_has_every_registered_type_none_wrong():
    rows = committed()
    assert [(row["mapping"], row["type"]) for row in rows] == families.TYPES
    assert {row["transformers"] for row in rows} == {transformers.__version__}, "write it anew: make families"
    assert {row["outcome"] for row in rows} == {"exact", "refused", "not tried"}
    exact = [row for row in rows if row["outcome"] == "exact"]
    for row in exact:
        assert row["class"] and row["route"] and not row["why"]
        assert float(row["exact_to"]) < 1e-4 and float(row["states_to"]) < 1e-5 and float(row["central_to"]) < 1e-4
    for row in (row for row in rows if row not in exact):
        assert row["why"] and not row["exact_to"] + row["states_to"] + row["central_to"] + row["route"]
    count = Counter(row["mapping"] for row in exact)
    for mapping, least in {"causal": 165, "masked": 38, "image and text": 75}.items():
        assert count[mapping] >= least, "most types are exact"
    found = {(row["mapping"], row["type"]): (row["class"], row["route"]) for row in exact}
    assert {each: found[each] for each in REPRESENTATIVES} == REPRESENTATIVES


def test_shrunk_settings_keep_layers_of_every_kind():
    given = dict(hidden_size=4096, num_hidden_layers=6, num_attention_heads=32, num_key_value_heads=8)
    given |= dict(layer_types=[*"aabaab"], layers_with_experts=[*range(6)], vision_config=dict(depth=24, patch_size=14))
    given |= dict(rms_norm_eps=1e-6, eos_token_id=[7, 900], image_token_id=901, id2label={0: "cat"})
    small = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    small |= dict(layer_types=[*"aab"], layers_with_experts=[0, 1, 2], vision_config=dict(depth=2, patch_size=8))
    small |= dict(rms_norm_eps=1e-6, eos_token_id=[7, 511], image_token_id=510)
    assert tiny_families.shrunk(given, {}) == small


@pytest.fixture
def three(monkeypatch, tmp_path) -> list[str]:
    """Three types, whose answers are made up; the list tells which were asked for."""
    asked = []

    def answers(wanted, jobs):
        for mapping, kind in wanted:
            asked.append(kind)
            row = dict(mapping=mapping, type=kind, outcome="exact", route="r", exact_to="2e-07")
            yield row | {"class": "C", "why": f"differs by 3e-0{len(asked)}"}

    monkeypatch.setattr(families, "TYPES", [("causal", "llama"), ("causal", "gpt2"), ("masked", "bert")])
    monkeypatch.setattr(families, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(families, "TABLE", tmp_path / "table.csv")
    monkeypatch.setattr(families, "run", answers)
    return asked


def test_run_resumes_and_writes_only_a_whole_table(three, capsys):
    assert families.main(["gpt2"]) == 0 and three == ["gpt2"] and not families.TABLE.is_file()
    assert families.main([]) == 0 and three == ["gpt2", "llama", "bert"]
    assert [(row["type"], row["exact_to"]) for row in committed()] == [(k, "2e-07") for k in ("llama", "gpt2", "bert")]
    assert families.main([]) == 0 and len(three) == 3
    assert capsys.readouterr().out.endswith("causal, exact: 2\nmasked, exact: 1\n")


def test_unchanged_rows_keep_their_digits(three):
    families.main([])
    lines = [json.loads(line) for line in families.KEPT.read_text(encoding="utf-8").splitlines()]
    lines[0] |= {"exact_to": "3e-07", "why": "differs by 8.4e-01"}
    lines[1]["outcome"], lines[2]["why"] = "wrong", "takes no mask"
    families.KEPT.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert families.main([]) == 1
    assert [(row["outcome"], row["why"], row["exact_to"]) for row in committed()] == [
        ("exact", "differs by 3e-01", "2e-07"),
        ("wrong", "differs by 3e-02", "2e-07"),
        ("exact", "takes no mask", "2e-07"),
    ]


def test_an_unknown_type_is_refused():
    refused(ParameterError, r"transformers [\d.]+ has no type lama", families.main, ["lama"])


def test_dead_or_hung_process_stops_no_other(monkeypatch):
    now = [0.0]

    def tried(mapping, kind):
        if kind == "dies":
            os._exit(3)
        if kind == "hangs":
            time.sleep(60)
        return {"outcome": "exact"}

    monkeypatch.setattr(families, "tried", tried)
    # The time is up once the others have answered, however long that takes.
    monkeypatch.setattr(families, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found = {}
    for row in families.run([("causal", kind) for kind in ("dies", "hangs", "lives")], 2):
        found[row["type"]] = row["outcome"], row.get("why")
        now[0] += families.SECONDS / 2
    dead, hung = ("error", "the process ended without an answer"), ("not tried", "took too long")
    assert found == {"dies": dead, "hangs": hung, "lives": ("exact", None)}
