"""Token ids are those of `tokenizer.json`, whatever class transformers builds, and its warnings are heard."""

import json
import warnings
from operator import attrgetter
from unittest.mock import Mock

import pytest
import tiny
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, Qwen2Tokenizer
from transformers.utils import logging

from coupling_lib.models import tokenizers
from coupling_lib.models.load import load_model

# GPT-2's own splitting, and one that its class does not know: digits one by one.
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
QWEN = Qwen2Tokenizer(vocab={"a": 0}, merges=[]).backend_tokenizer.pre_tokenizer
END = "<|endoftext|>"


def write(folder, backend, **settings):
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save(folder, kind, split=None, steps=None, bos=False, **settings):
    """Write the tokenizer of a class with other steps in its file, and return the ids that the file makes."""
    base, alphabet = tiny.tokenizer().backend_tokenizer, pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=275, initial_alphabet=alphabet, show_progress=False)
    base.train_from_iterator([*tiny.TEXT, "12 123 1234 12 123 1234"] * 3, trainer)
    base.add_special_tokens([END, "<pad>"])
    if split is not None:
        base.pre_tokenizer = split
    if steps is not None:
        base.normalizer = steps
    if bos:
        base.post_processor = processors.TemplateProcessing(f"{END} $A", special_tokens=[(END, base.token_to_id(END))])
    write(folder, base, **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END), tokenizer_class=kind, **settings)
    return lambda text: Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


def loaded(folder):
    """Return the tokenizer of a folder, and its warnings."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        made = tokenizers.load(folder, "mine")
    return made, [str(one.message) for one in caught]


CHANGES = {
    "digits": {"split": DIGITS},
    "lowercase": {"steps": normalizers.Lowercase()},
    "blanks": {"steps": normalizers.Replace(" ", "_")},
}


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "GPTNeoXTokenizer"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_ids_are_those_of_the_tokenizer_file(tmp_path, kind, change):
    expected, text = save(tmp_path, kind, **change, chat_template="{{ messages }}"), "The 1234 Days of Paris"
    theirs, (made, warned) = AutoTokenizer.from_pretrained(tmp_path), loaded(tmp_path)
    differs = theirs(text).input_ids != expected(text)
    assert differs or (kind, change) != ("GPT2Tokenizer", CHANGES["digits"])
    assert made(text).input_ids == expected(text)
    start = f"mine: {kind} of transformers makes other token ids than tokenizer.json (of '"
    assert all(line.startswith(start) and "\n" not in line for line in warned)
    assert len(warned) == 1 or not differs
    assert made.decode(made("The capital").input_ids).lower().strip() == made.decode(expected("The capital")).lower()
    kept = attrgetter("bos_token", "eos_token", "chat_template")
    assert kept(made) == kept(theirs) == (END, END, "{{ messages }}")


def test_tokenizer_class_with_the_same_ids_is_kept(tmp_path):
    expected = save(tmp_path, "GPT2Tokenizer")
    made, warned = loaded(tmp_path)
    assert (type(made).__name__, warned) == ("GPT2Tokenizer", [])
    assert made("1234 naïve").input_ids == expected("1234 naïve")
    stored = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    stored.enable_truncation(4)
    stored.enable_padding(length=4)
    stored.save(str(tmp_path / "tokenizer.json"))
    assert loaded(tmp_path)[1] == []
    save(tmp_path, "Qwen2Tokenizer", split=QWEN)
    assert len(loaded(tmp_path)[1]) == 1  # its class composes accents, which this file does not
    (tmp_path / "gguf.json").write_text("{}")
    made, warned = loaded(tmp_path)
    assert (type(made).__name__, warned) == ("Qwen2Tokenizer", [])  # of a GGUF file, which transformers wrote
    assert made("e\u0301").input_ids == made("\u00e9").input_ids
    expected = save(tmp_path, "GPT2Tokenizer", split=DIGITS)
    made, warned = loaded(tmp_path)
    assert made("1234").input_ids == expected("1234") and len(warned) == 1


@pytest.mark.parametrize("lower", [True, False])
def test_setting_of_the_configuration_overrides_the_file(tmp_path, lower):
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "Paris", *letters, *map("##{}".format, letters)]
    base = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    base.normalizer = normalizers.BertNormalizer(lowercase=not lower)
    base.pre_tokenizer, base.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    base.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    write(tmp_path, base, tokenizer_class="BertTokenizer", do_lower_case=lower)
    made, warned = loaded(tmp_path)
    assert warned == [] and made("Paris").input_ids == [2, words.index("paris" if lower else "Paris"), 3]


def test_first_token_is_the_files_or_warned_of(tmp_path):
    expected = save(tmp_path, "GPT2Tokenizer", split=DIGITS, bos=True)
    made, (_,) = loaded(tmp_path)
    assert made("It was").input_ids == expected("It was") and made("It was").input_ids[0] == made.bos_token_id
    save(tmp_path, "PreTrainedTokenizerFast", add_bos_token=True)
    made, (warned,) = loaded(tmp_path)
    assert made("It").input_ids[0] != made.bos_token_id
    assert warned.startswith("mine: tokenizer_config.json says that each text begins with the BOS token")
    assert warned.endswith(f"write it before each text ('{END}')")
    for settings in [{}, {"add_bos_token": False}, {"add_bos_token": None}, {"add_bos_token": True}]:
        expected = save(tmp_path, "GPT2Tokenizer", bos=bool(settings.get("add_bos_token")), **settings)
        made, warned = loaded(tmp_path)
        assert (made("It was").input_ids, warned) == (expected("It was"), [])


def test_tokenizer_logs_of_transformers_become_a_warning(tmp_path, monkeypatch, capfd):
    tiny.save_llama(tmp_path)
    log, read, before = logging.get_logger("transformers.x"), AutoTokenizer.from_pretrained, logging.get_verbosity()
    talkative = Mock(side_effect=lambda *given, **how: log.warning("the regex\nis wrong") or read(*given, **how))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", talkative)
    with pytest.warns(UserWarning, match="transformers says of the tokenizer of .*: the regex is wrong") as caught:
        load_model(tmp_path, device="cpu")
    assert len(caught) == 1 and logging.get_verbosity() == before and "regex" not in capfd.readouterr().err
