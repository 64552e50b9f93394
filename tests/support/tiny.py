"""Tiny random models in folders, as `save_pretrained` writes them: a decoder, an encoder, a vision transformer."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WIDTH, BLOCKS = 32, 3
STACK = dict(hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=4, intermediate_size=64)
TEXT = ["What is the capital of France? The capital is Paris.", "It was the best of times, it was the worst of times."]


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE trained on two sentences: every text can be written with it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe)


def llama(seed: int = 0, **changes) -> transformers.LlamaForCausalLM:
    arguments = dict(STACK, vocab_size=280, num_key_value_heads=2, max_position_embeddings=256) | changes
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**arguments)).eval()


def _saved(model, folder: Path, with_tokenizer: bool = True, **saving):
    model.eval().save_pretrained(folder, **saving)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return model


def save_llama(folder: Path, seed: int = 0, *, with_tokenizer: bool = True, **saving) -> transformers.LlamaForCausalLM:
    return _saved(llama(seed), folder, with_tokenizer, **saving)


def save_bert(folder: Path) -> transformers.BertForMaskedLM:
    torch.manual_seed(0)
    return _saved(transformers.BertForMaskedLM(transformers.BertConfig(**STACK, vocab_size=280)), folder)


def save_vit(folder: Path) -> transformers.ViTForImageClassification:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**STACK, image_size=16, patch_size=8, num_labels=10)
    return _saved(transformers.ViTForImageClassification(config), folder, with_tokenizer=False)


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
