"""A model's tokenizer, checked against the file that defines it.

transformers 5 reads the vocabulary from `tokenizer.json`, and takes splitting and normalisation from code. Both
encode a few test texts; where their ids differ, the file's own steps are used, as in training, with a warning.
"""

import json
import unicodedata
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice, product
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_log

from coupling_lib.models import gguf_files, hub

TEST_TEXTS = (
    "The 1234567 days of don't, I'LL and it's; 3.14e-5, x_y2z!?...\n\n\tif (a  ==   b):\r\n        return {'k': [0]}  ",
    " Zürich, naïve café; Ångström - CAFÉ, e\u0301, ﬁ, ½, Ⅷ, 12,345\u00a0€ «ß» "
    "русский язык, עברית, हिन्दी 東京は日本の首都 한국어 👩🏽‍🔬🎉 ",
)
"""Texts on which tokenizers differ: digits, contractions, white space, code, accents, scripts without blanks, emoji."""

_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"


def load(folder: Path, name: str) -> PreTrainedTokenizerBase | None:
    """Read the tokenizer, if the folder has one; input_ids can be measured without."""
    if not any((folder / file).is_file() for file in hub.TOKENIZER_FILES):
        return None
    with _log_as_warnings(name):
        made = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    settings = json.loads((folder / _CONFIG).read_text(encoding="utf-8")) if (folder / _CONFIG).is_file() else {}
    if (folder / _FILE).is_file():
        made = _checked_by_file(made, folder, settings, name)
    # A setting that asks for a first token, which the class ignores.
    first = made.bos_token_id
    if settings.get("add_bos_token") is True and (first is None or made("a").input_ids[:1] != [first]):
        warnings.warn(
            f"{name}: {_CONFIG} says that each text begins with the BOS token (add_bos_token), and the tokenizer puts "
            f"none there: texts are read otherwise than in training; write it before each text"
            + (f" ({made.bos_token!r})" if first is not None else " (bos_token is not set)"),
            stacklevel=3,
        )
    return made


def _checked_by_file(made: PreTrainedTokenizerBase, folder: Path, settings: dict, name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer, or one with the steps of its file if a test text has other ids by these."""
    try:
        backend = type(made.backend_tokenizer).from_file(str(folder / _FILE))
    except Exception:  # a file of another version, which only transformers reads
        return made
    _apply_settings(backend, settings)
    # Lengths are set by the caller of a tokenizer, and do not determine a text's ids.
    backend.no_truncation()
    backend.no_padding()
    # The file of a GGUF model was written by transformers, without the NFC of its class, which training used; the rest
    # of it, such as how text is split, is reliable.
    composed = (folder / gguf_files.RECORD).is_file()
    texts = [unicodedata.normalize("NFC", text) if composed else text for text in TEST_TEXTS]
    added = islice(backend.get_added_tokens_decoder().values(), 64)
    texts.append("a".join(token.content for token in added))
    # With special tokens around a text, too, where the file determines these.
    framed = not any(settings.get(key) is not None for key in ("add_bos_token", "add_eos_token"))
    for text, special in product(filter(None, texts), {False, framed}):
        ours = made(text, add_special_tokens=special, verbose=False)["input_ids"]
        files = backend.encode(text, add_special_tokens=special).ids
        if ours != files:
            at = next((i for i, (one, other) in enumerate(zip(ours, files, strict=False)) if one != other), 0)
            differing = f"of {text[:12]!r}..., {len(ours)} against {len(files)}, from position {at}"
            warnings.warn(
                f"{name}: {type(made).__name__} of transformers makes other token ids than {_FILE} ({differing}); "
                "those of the file are used, as in its training",
                stacklevel=4,
            )
            return _from_file(made, backend, settings)
    return made


def _from_file(made: PreTrainedTokenizerBase, backend: Any, settings: dict) -> PreTrainedTokenizerBase:
    """Build a tokenizer from the file's backend, with special tokens and template of the one from transformers."""
    several = {role: x if isinstance(x, list | tuple) else [x] for role, x in made.special_tokens_map.items()}
    absent = {role for role, tokens in several.items() if None in map(backend.token_to_id, map(str, tokens))}
    named = {role: token for role, token in made.special_tokens_map.items() if role not in absent}
    asked = {key: settings[key] for key in ("add_bos_token", "add_eos_token") if settings.get(key) is not None}
    kept = {key: getattr(made, key, None) for key in ("chat_template", "model_max_length", "padding_side")}
    kept = {key: value for key, value in kept.items() if value is not None}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **named, **asked, **kept)


def _apply_settings(backend: Any, settings: dict) -> None:
    """Apply a configuration's settings to the file's tokenizer, as transformers has always done."""
    steps, first = backend.normalizer, backend.pre_tokenizer
    asked = {key: value for key, value in settings.items() if isinstance(value, bool)}
    if type(steps).__name__ == "BertNormalizer":
        steps.lowercase = asked.get("do_lower_case", steps.lowercase)
        steps.strip_accents = asked.get("strip_accents", steps.strip_accents)
        steps.handle_chinese_chars = asked.get("tokenize_chinese_chars", steps.handle_chinese_chars)
    if type(first).__name__ == "ByteLevel":
        first.add_prefix_space = asked.get("add_prefix_space", first.add_prefix_space)


@contextmanager
def _log_as_warnings(name: str) -> Generator[None]:
    """Raise transformers' log messages about a tokenizer as warnings, whatever its log level."""
    kept, before = BufferingHandler(1000), transformers_log.get_verbosity()
    transformers_log.set_verbosity_warning()
    transformers_log.disable_default_handler()
    transformers_log.add_handler(kept)
    try:
        yield
    finally:
        transformers_log.remove_handler(kept)
        transformers_log.enable_default_handler()
        transformers_log.set_verbosity(before)
    for message in dict.fromkeys(" ".join(record.getMessage().split()) for record in kept.buffer):
        warnings.warn(f"transformers says of the tokenizer of {name}: {message}", stacklevel=4)
