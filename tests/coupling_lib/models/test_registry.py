import pytest
from refusals import refused

from coupling_lib import paths
from coupling_lib.errors import CouplingError
from coupling_lib.models import registry

MISSPELT = {"lama3-8b": "llama3-8b", "nano-noex": "nano-neox", "pythia12b": "pythia-12b", "Gemma2b": "gemma-2b"}
PYTHIA = [f"pythia-{size}" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")]
EMBEDDED = {("nano-neox", 12, 96), ("nano-llama", 12, 96), ("nano-vit", 12, 36), ("nano-vit-sd", 12, 36)}


def test_registry_entries_are_unique_and_sourced():
    known = registry.entries()
    aliases, ids = [entry.alias for entry in known], [entry.hub_id for entry in known if entry.hub_id]
    assert len(aliases) == len(set(aliases)) and len(ids) == len(set(ids))
    assert all(alias == alias.lower().strip() and alias and " " not in alias for alias in aliases)
    # An alias is looked up before an id, so that neither may stand for two models.
    assert not {entry.hub_id.lower() for entry in known if entry.hub_id != entry.alias} & {*aliases}
    assert {entry.kind for entry in known} == {"base", "tuned", "not recorded"}
    paper = [entry for entry in known if entry.in_paper]
    assert all(entry.blocks and entry.width and entry.parameters_b for entry in paper)
    assert (len(paper), sum(entry.coupling_fig1a_digitised is not None for entry in paper)) == (52, 28)
    assert sum(not (entry.in_paper or entry.embedded or entry.family == "Pythia") for entry in known) >= 20
    assert [registry.lookup(name).hub_id for name in PYTHIA] == [f"EleutherAI/{name}" for name in PYTHIA]
    embedded = {(entry.alias, entry.blocks, entry.width) for entry in known if entry.embedded}
    assert embedded == EMBEDDED
    for entry in known:
        assert bool(entry.hub_id) != entry.embedded, entry.alias
        assert bool(entry.training_tokens_source) == (entry.training_tokens_t is not None), entry.alias
        scores = [getattr(entry, task) for task in registry.TASKS]
        assert all(score is None or 0 < score < 100 for score in scores), entry.alias
        assert bool(entry.score_source) == any(score is not None for score in scores), entry.alias
        assert entry.average is None or entry.average == pytest.approx(sum(scores) / 6, abs=0.011), entry.alias


def test_registry_names_are_found_in_any_case():
    llama = registry.lookup(" LLAMA3-8b ")
    assert (llama.hub_id, llama.blocks, llama.width) == ("meta-llama/Meta-Llama-3-8B", 32, 4096)
    assert registry.lookup("META-llama/meta-llama-3-8b") is llama
    assert registry.lookup("lama3-8b") is registry.lookup("") is None
    assert {name: registry.suggest(name)[0] for name in MISSPELT} == MISSPELT and registry.suggest("zzzzzzzz") == []
    names = ["mine", "llama3-8b", "gpt2", "phi-2", "other/model", "EleutherAI/pythia-1.4b"]
    expected = ["gpt2", "EleutherAI/pythia-1.4b", "phi-2", "llama3-8b", "mine", "other/model"]
    assert registry.by_size(names) == expected and registry.by_size({"one": 1}) == ["one"]


LENGTH = r"models.csv line 2 has 2\d values; 23 were expected; correct it"
NOTE = ",trained by this project on English novels; revisions step0 to step10000"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",12,96,", ",many,96,", "line 2 has blocks = 'many'"),
        (",n,y,", ",yes,y,", "line 2 has in_paper = 'yes'"),
        (NOTE, f"{NOTE},", LENGTH),
        (NOTE, "", LENGTH),
        ("hub_id", "hub", "has columns"),
    ],
)
def test_a_damaged_registry_is_refused_with_the_place(tmp_path, monkeypatch, old, new, message):
    text = (paths.DATA / "models.csv").read_text()
    (tmp_path / "models.csv").write_text(text.replace(old, new, 1))
    monkeypatch.setattr(paths, "DATA", tmp_path)
    assert old in text
    refused(CouplingError, message, registry.entries)
