"""Token ids are those of `tokenizer.json`, whatever class transformers builds, and its warnings are heard."""

import json
import warnings

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


def save(folder, split=None, steps=None, bos=False, **settings):
    """Write the tokenizer of a class with other steps in its file, and return the ids that the file makes."""
    base = tiny.tokenizer().backend_tokenizer
    base.train_from_iterator([*tiny.TEXT, "12 123 1234 12 123 1234"] * 3, trainer())
    base.add_special_tokens(["<|endoftext|>", "<pad>"])
    if split is not None:
        base.pre_tokenizer = split
    if steps is not None:
        base.normalizer = steps
    if bos:
        special = [("<|endoftext|>", base.token_to_id("<|endoftext|>"))]
        base.post_processor = processors.TemplateProcessing("<|endoftext|> $A", special_tokens=special)
    folder.mkdir(exist_ok=True)
    base.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | settings))
    return lambda text: Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


def trainer():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trainers.BpeTrainer(vocab_size=275, initial_alphabet=alphabet, show_progress=False)


def loaded(folder):
    """Return the tokenizer of a folder, and its warnings."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        made = tokenizers.load(folder, "mine")
    return made, [str(one.message) for one in caught]


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "GPTNeoXTokenizer"])
@pytest.mark.parametrize(
    "change",
    [{"split": DIGITS}, {"steps": normalizers.Lowercase()}, {"steps": normalizers.Replace(" ", "_")}],
    ids=["digits", "lowercase", "blanks"],
)
def test_ids_are_those_of_the_tokenizer_file(tmp_path, kind, change):
    expected = save(tmp_path, **change, tokenizer_class=kind)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    made, warned = loaded(tmp_path)
    text = "The 1234 Days of Paris"
    differs = theirs(text).input_ids != expected(text)
    assert made(text).input_ids == expected(text)
    assert all("makes other token ids than tokenizer.json" in line and "\n" not in line for line in warned)
    assert len(warned) == 1 or not differs
    assert made.decode(made("The capital").input_ids).lower().strip() == made.decode(expected("The capital")).lower()
    assert (made.bos_token, made.eos_token) == (theirs.bos_token, theirs.eos_token)


def test_tokenizer_class_with_other_ids_is_replaced(tmp_path):
    expected = save(tmp_path, split=DIGITS, tokenizer_class="GPT2Tokenizer", chat_template="{{ messages }}")
    assert AutoTokenizer.from_pretrained(tmp_path)("1234").input_ids != expected("1234")
    made, (warned,) = loaded(tmp_path)
    message = "mine: GPT2Tokenizer of transformers makes other token ids than tokenizer.json (of 'The 123"
    assert warned.startswith(message)
    assert (made("1234").input_ids, made.chat_template) == (expected("1234"), "{{ messages }}")
    expected, tmp_path = save(tmp_path / "plain", tokenizer_class="GPT2Tokenizer"), tmp_path / "plain"
    made, warned = loaded(tmp_path)
    assert (type(made).__name__, warned) == ("GPT2Tokenizer", [])
    assert made("1234 naïve").input_ids == expected("1234 naïve")


def test_tokenizer_class_of_a_gguf_file_is_kept(tmp_path):
    save(tmp_path, tokenizer_class="Qwen2Tokenizer", split=QWEN)
    assert len(loaded(tmp_path)[1]) == 1  # its class composes accents, which this file does not
    (tmp_path / "gguf.json").write_text("{}")
    made, warned = loaded(tmp_path)
    assert (type(made).__name__, warned) == ("Qwen2Tokenizer", [])
    assert made("e\u0301").input_ids == made("\u00e9").input_ids
    expected = save(tmp_path, tokenizer_class="GPT2Tokenizer", split=DIGITS)
    made, warned = loaded(tmp_path)
    assert made("1234").input_ids == expected("1234") and len(warned) == 1


@pytest.mark.parametrize("lower", [True, False])
def test_setting_of_the_configuration_overrides_the_file(tmp_path, lower):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "Paris", *"abcdefghijklmnopqrstuvwxyz"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    base = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    base.normalizer = normalizers.BertNormalizer(lowercase=not lower)
    base.pre_tokenizer, base.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    base.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    base.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    made, warned = loaded(tmp_path)
    assert warned == [] and made("Paris").input_ids == [2, words.index("paris" if lower else "Paris"), 3]


def test_first_token_of_the_file_is_kept(tmp_path):
    expected = save(tmp_path, split=DIGITS, bos=True, tokenizer_class="GPT2Tokenizer")
    made, warned = loaded(tmp_path)
    assert made("It was").input_ids == expected("It was") and made("It was").input_ids[0] == made.bos_token_id
    assert len(warned) == 1
    save(tmp_path := tmp_path / "plain", tokenizer_class="GPT2Tokenizer")
    stored = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    stored.enable_truncation(4)
    stored.enable_padding(length=4)
    stored.save(str(tmp_path / "tokenizer.json"))
    assert loaded(tmp_path)[1] == []


def test_missing_first_token_is_warned_of(tmp_path):
    save(tmp_path, tokenizer_class="PreTrainedTokenizerFast", add_bos_token=True)
    made, (warned,) = loaded(tmp_path)
    assert made("It").input_ids[0] != made.bos_token_id
    assert warned.startswith("mine: tokenizer_config.json says that each text begins with the BOS token")
    assert warned.endswith("write it before each text ('<|endoftext|>')")
    for settings in [{}, {"add_bos_token": False}, {"add_bos_token": None}, {"add_bos_token": True}]:
        expected = save(tmp_path, bos=bool(settings.get("add_bos_token")), tokenizer_class="GPT2Tokenizer", **settings)
        made, warned = loaded(tmp_path)
        assert (made("It was").input_ids, warned) == (expected("It was"), [])


def test_tokenizer_logs_of_transformers_become_a_warning(tmp_path, monkeypatch, capfd):
    tiny.save_llama(tmp_path)
    read = AutoTokenizer.from_pretrained

    def talkative(*args, **kwargs):
        logging.get_logger("transformers.tokenization_utils_base").warning("the regex\nis wrong")
        return read(*args, **kwargs)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", talkative)
    before = logging.get_verbosity()
    with pytest.warns(UserWarning, match="transformers says of the tokenizer of .*: the regex is wrong") as caught:
        load_model(tmp_path, device="cpu")
    assert len(caught) == 1 and logging.get_verbosity() == before and "regex" not in capfd.readouterr().err
