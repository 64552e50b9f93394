"""Scores of the quality experiment's language models, one value per window, each with its interval.

- *Loss* on windows of a text, in nats per token.
- *Cloze*: a word is to be picked from five, given the text to its left. Blanks are whole words of one token in the
  second half of each window; the others are drawn by how often they fill a blank. Chance is one in five.
- *Induction*: a random sequence is shown twice. The score is the share of tokens of the second half that are predicted
  right, which requires copying from the context, and the gain, by how many nats a token its loss is below
  that of the first half.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from companion.tables.inference import effect_of
from coupling_lib.errors import ParameterError

Predict = Callable[[Tensor], Tensor]
"""Function from windows (n, context) to logits (n, context, vocabulary)."""

CHOICES = 5
"""Number of words to choose from for a blank."""

SEQUENCES = 64
"""Number of random sequences of the induction score."""

# Representation of a space and the end of a line in the byte-level tokenizer.
_BEGINS, _ENDS = "Ġ", ("Ġ", "Ċ")


def logits_of(hf: PreTrainedModel) -> Predict:
    """Return a model's logits as a function of windows."""
    return lambda ids: hf(input_ids=ids, use_cache=False).logits


def with_interval(**scores: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean of each score over its windows, and its 95 % interval."""
    columns = {}
    for name, values in scores.items():
        effect = effect_of(values)
        columns |= {name: effect.value, f"{name}_low": effect.low, f"{name}_high": effect.high}
    return columns


@torch.no_grad()
def nats(predict: Predict, windows: Tensor) -> Tensor:
    """Compute the cross-entropy of every token but the first of each window, (n, context - 1)."""
    found = []
    for ids in windows.split(32):
        logits = predict(ids)[:, :-1].float()
        found.append(functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"))
    return torch.cat(found)


def words(vocabulary: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """Mark the tokens that are a word of three letters or more, and those that may follow a whole word."""
    size = max(vocabulary.values()) + 1
    whole, after = torch.zeros(2, size, dtype=torch.bool)
    for token, place in vocabulary.items():
        letters = token.removeprefix(_BEGINS)
        whole[place] = token != letters and len(letters) >= 3 and letters.isascii() and letters.isalpha()
        after[place] = token[:1] in _ENDS or (token[:1].isascii() and not token[:1].isalnum())
    return whole, after


@torch.no_grad()
def cloze(predict: Predict, windows: Tensor, tokenizer: PreTrainedTokenizerFast) -> NDArray[np.float64]:
    """Return the share of each window's blanks filled with the right word; windows without a blank are left out."""
    whole, after = words(tokenizer.get_vocab())
    half = windows.shape[1] // 2
    # The logits of a position are of the next token, and the token after that must end the word.
    blanks = whole[windows[:, half + 1 : -1]] & after[windows[:, half + 2 :]]
    at = blanks.nonzero()
    truths = windows[at[:, 0], at[:, 1] + half + 1]
    frequency = torch.bincount(truths, minlength=len(whole)).double()
    if (known := int((frequency > 0).sum())) < CHOICES:
        raise ParameterError(f"the held-out text has blanks of {known} words; cloze needs {CHOICES}, give more text")
    # Largest of log-frequency and Gumbel noise: words drawn without replacement, by frequency.
    noise = np.random.default_rng(0).gumbel(size=(len(truths), len(whole)))
    keys = frequency.log() + torch.from_numpy(noise)
    keys[torch.arange(len(truths)), truths] = -torch.inf
    offered = torch.cat([truths[:, None], keys.topk(CHOICES - 1).indices], dim=1)
    right = torch.empty(len(truths), dtype=torch.float64)
    for first in range(0, len(windows), 32):
        chosen = (at[:, 0] >= first) & (at[:, 0] < first + 32)
        logits = predict(windows[first : first + 32])
        found = logits[at[chosen, 0] - first, at[chosen, 1] + half].gather(1, offered[chosen])
        best = found == found.amax(dim=1, keepdim=True)
        right[chosen] = best[:, 0].double() / best.sum(dim=1)  # ties are broken at random
    counts = torch.bincount(at[:, 0], minlength=len(windows))
    shares = torch.bincount(at[:, 0], right, len(windows)) / counts
    return shares[counts > 0].numpy()


@torch.no_grad()
def induction(predict: Predict, vocabulary: int, context: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of correctly predicted repeated tokens, and the gain in nats, for each sequence."""
    half = context // 2
    once = torch.randint(1, vocabulary, (SEQUENCES, half), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([once, once], dim=1)
    logits = predict(ids).float()
    losses = functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").double()
    # The second half's first token cannot be predicted: nothing shows that a repetition begins.
    right = (logits[:, half:-1].argmax(dim=-1) == ids[:, half + 1 :]).double().mean(dim=1)
    gain = losses[:, : half - 1].mean(dim=1) - losses[:, half:].mean(dim=1)
    return right.numpy(), gain.numpy()
