"""Padding that would be read as text, a first token that stands twice, and a last one that is no text."""

import warnings
from types import SimpleNamespace

import pytest
import tiny
import torch
from refusals import refused
from tokenizers import processors

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.inputs import token_ids

PARIS = "The capital of France"


def tokenizer(pad="<pad>", first=False, last=False):
    """A tokenizer with a token of its own for padding, or with another's, which may put tokens around a text."""
    made = tiny.tokenizer()
    made.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", **({"pad_token": pad} if pad else {})})
    around = [("<s>", made.bos_token_id), ("</s>", made.eos_token_id)]
    form = f"{'<s> ' * first}$A{' </s>' * last}"
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(form, special_tokens=around)
    return made


def model(**kind):
    return cl.wrap_model(tiny.llama(vocab_size=300), tokenizer(**kind), name="mine")


def traced(mine, ids):
    """Trace ids and return what was warned of, and the Jacobian of block 1."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        J = cl.trace(mine, ids).jacobian(1).dense()
    return [str(one.message) for one in caught], J


def cut(mine, *ids) -> str:
    """The slice without padding that a refusal of ids advises; empty where nothing is refused or warned of."""
    given = torch.tensor([ids])
    try:
        assert traced(mine, given)[0] == []
    except ParameterError as error:
        return str(error).rpartition("input_ids=ids")[2]
    return ""


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad", ["<pad>", "</s>"])
def test_padding_is_refused_with_a_slice_without_it(side, pad):
    mine = model(pad=pad)
    mine.tokenizer.padding_side = side
    texts = [PARIS, PARIS + ", of which it was said that"]
    ids = mine.tokenizer(texts, padding=True, return_tensors="pt").input_ids[:1]
    alone = torch.tensor([mine.tokenizer(PARIS).input_ids])
    more = ids.shape[1] - alone.shape[1]
    place, part = ("beginning", f"{more}:") if side == "left" else ("end", f":-{more}")
    where = rf"\(id {mine.tokenizer.pad_token_id}\), {more} at its {place}, which the model would read as text"
    message = refused(ParameterError, where, cl.trace, mine, ids)
    assert message.endswith(f"input_ids=ids[:, {part}]")
    sliced = eval(message.rpartition("=")[2])
    assert torch.equal(sliced, alone) and traced(mine, sliced)[0] == []
    # What would have been measured: another Jacobian, by no means nearly the same.
    assert side == "right" or (traced(cl.wrap_model(mine.hf), ids)[1] - traced(mine, alone)[1]).norm() > 0.01


OWN = {"pad a b": "[:, 1:]", "pad a b pad pad": "[:, 1:-2]"}
OWN |= dict.fromkeys(("eos a b", "a pad b", "eos a eos", "a b eos", "pad pad"), "")
SHARED = {"eos eos a b": "[:, 2:]", "a b eos eos": "[:, :-2]"}
SHARED |= dict.fromkeys(("eos a b", "a b eos", "eos a eos", "a eos eos b"), "")


@pytest.mark.parametrize(("pad", "cuts"), [("<pad>", OWN), ("</s>", SHARED), (None, SHARED)])
def test_single_pad_token_is_refused_unless_also_eos(pad, cuts):
    mine = model(pad=pad)
    ids = {"pad": mine.tokenizer.pad_token_id, "eos": mine.tokenizer.eos_token_id, "a": 40, "b": 41}
    assert {tokens: cut(mine, *map(ids.get, tokens.split())) for tokens in cuts} == cuts


def test_pad_token_is_found_in_tokenizer_or_configuration():
    mine = model(pad="<s>", first=True)
    assert traced(mine, PARIS)[0] == []
    assert cut(mine, *[mine.tokenizer.bos_token_id] * 4, 40, 41) == "[:, 3:]"
    mine = cl.wrap_model(tiny.llama(pad_token_id=7))
    cuts = [cut(mine, *ids) for ids in ([7, 40, 41], [40, 7], [7, 7, 7], [7, 7, 40])]
    assert cuts == ["", "", "", "[:, 2:]"]
    assert cut(cl.wrap_model(tiny.llama()), 0, 0, 40) == ""


def test_batch_encoding_is_refused_with_its_input_ids():
    mine = model()
    mine.tokenizer.padding_side = "left"
    made = mine.tokenizer([PARIS, PARIS + " and more"], padding=True, return_tensors="pt")
    message = "the input is a BatchEncoding; give a text, a `Prompt` or a tensor of input_ids; "
    advice = refused(ParameterError, f"^{message}", cl.trace, mine, made).rpartition(": ")[2]
    one = mine.tokenizer([PARIS], return_tensors="pt")
    assert torch.equal(eval(advice, {"made": one}), one.input_ids)
    assert token_ids.special_tokens(lambda text: {"input_ids": [1]}) == ([], [])
    assert token_ids.last_token_warning([1, 2], None, "mine") == ""
    token_ids.check([1, 1], None, SimpleNamespace(decode=str), "mine")


def test_doubled_first_token_is_warned_of():
    mine = model(first=True)
    assert traced(mine, PARIS)[0] == []
    messages, J = traced(mine, f"<s>{PARIS}")
    assert len(messages) == 1 and messages[0].startswith("mine: the input begins with '<s>' twice")
    once = mine.tokenizer(f"<s>{PARIS}", add_special_tokens=False, return_tensors="pt").input_ids
    nothing, right = traced(mine, once)
    assert nothing == [] and (right - traced(mine, PARIS)[1]).norm() == 0 < (J - right).norm()
    assert traced(model(), f"<s><s>{PARIS}")[0] == []  # no tokenizer wrote these
    mine = model(first=True, last=True)
    puts = "mine: the last token is '</s>', which its tokenizer puts behind each text; the last of the text itself is "
    assert traced(mine, PARIS)[0] == [f"{puts}token=-2"]
    with warnings.catch_warnings(action="error"):
        there = cl.trace(mine, PARIS)
        there.jacobian(1, token_in=-2)
        cl.measure_depth(mine, [PARIS], ks=[2], token=-2)
        model(first=True).tokenizer, cl.trace(model(first=True), PARIS).jacobian(1)
        cl.trace(mine, there.inputs["input_ids"][:, :-1]).jacobian(1)
    with pytest.warns(UserWarning, match="token=-2"):
        cl.measure_depth(model(first=True, last=True), [PARIS], ks=[2])  # `mine` has been warned of
