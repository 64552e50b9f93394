"""Block Jacobians of every family against brute force, and the operator's algebra."""

import numpy as np
import pytest
import torch
from families import Family, each_family, loaded, named
from reference import brute_force_jacobian, relative_error, rows
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.inputs import traced as tracing
from coupling_lib.jacobian import operator as jacobian

# (last, last), (middle, middle), t1 < t2; token positions of an 11-token prompt, or of the patches of an image.
PAIRS = [(-1, -1), (5, 5), (7, 9)]
pytestmark = pytest.mark.usefixtures("small_layers_count_as_large")
LLAMA, GPT2 = named("llama"), named("gpt2")


def example(hf) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if hf.main_input_name == "pixel_values":
        return torch.randn(1, 3, 16, 16, generator=generator, dtype=torch.float64).to(hf.dtype)
    return torch.randint(1, 64, (1, 11), generator=generator)


def traced(family: Family, dtype: torch.dtype = torch.float64) -> cl.Trace:
    model = loaded(family, dtype)
    return tracing.trace(model, example(model.hf))


@each_family()
def test_jacobian_equals_brute_force_in_every_family(family, family_table):
    trace, narrow = traced(family), traced(family, torch.float32)
    assert trace.route == narrow.route == family.route
    worst = {"float64": 0.0, "float32": 0.0}
    compared = 0
    for block, module in enumerate(trace.model.blocks.modules):
        for token_in, token_out in PAIRS + [(9, 7)] * family.bidirectional:
            pair = token_in % trace.n_tokens, token_out % trace.n_tokens
            wanted = brute_force_jacobian(trace.model.hf, module, trace.inputs, *pair)
            for name, each in (("float64", trace), ("float32", narrow)):
                found = each.jacobian(block, *pair).dense()
                assert found.dtype == getattr(torch, name)
                worst[name] = max(worst[name], relative_error(found, wanted))
            compared += 1
    family_table.append((family.name, trace.route, worst["float64"], worst["float32"]))
    assert compared == 3 * (4 if family.bidirectional else 3)
    assert worst["float64"] < (1e-10 if family.wide else 1e-5)
    assert worst["float32"] < 1e-4


@each_family()
def test_jacobians_of_many_tokens_equal_single_ones(family):
    trace = traced(family)
    tokens = [0, 3, 6, trace.n_tokens - 1]
    many = cl.block_jacobians(trace, 1, [(token, token) for token in tokens])
    for token, J in zip(tokens, many, strict=True):
        assert relative_error(J, trace.jacobian(1, token).dense()) < 1e-6
    # Within a sliding window of four, so that none is zero.
    pairs = [(2, 4), (5, 6), (6, 7)]
    for pair, J in zip(pairs, cl.block_jacobians(trace, 1, pairs), strict=True):
        assert relative_error(J, trace.jacobian(1, *pair).dense()) < 1e-6


@pytest.mark.parametrize(
    ("block", "pairs", "message"),
    [
        (1, [(1, 1), (1, 2)], "mixes t1 = t2 with t1 != t2"),
        (1, [(-1, -1)], r"pairs is \[\(-1, -1\)\]; expected \(t1, t2\), ... with t from 0"),
        (1, [(1.0, 1)], "pairs is .*1.0, 1.*; expected"),
        (1, [], r"pairs is \[\]; expected"),
        (1, (1, 1), r"pairs is \(1, 1\); expected"),
        (9, [(1, 1)], "block is 9; it must be a whole number from"),
    ],
)
def test_impossible_blocks_and_token_pairs_are_refused(block, pairs, message):
    refused(ParameterError, message, cl.block_jacobians, traced(LLAMA), block, pairs)


@each_family()
def test_products_both_ways_equal_the_dense_matrix(family):
    generator = torch.Generator().manual_seed(2)
    V = torch.randn(32, 5, generator=generator, dtype=torch.float64)
    for pair in PAIRS + [(9, 7)] * family.bidirectional:
        lazy, formed = traced(family).jacobian(1, *pair), traced(family).jacobian(1, *pair)
        J = formed.dense()
        torch.testing.assert_close(lazy @ V, J @ V, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lazy.T @ V, J.T @ V, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lazy @ V[:, 0], J @ V[:, 0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lazy.T @ V[:, 0], J.T @ V[:, 0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(formed @ V, J @ V)
        torch.testing.assert_close(formed.T @ V, J.T @ V)
        assert lazy.T.T is lazy and lazy.shape == lazy.T.shape == (32, 32)


def test_held_jacobian_evaluates_its_block_once(monkeypatch):
    J, evaluated = traced(GPT2).jacobian(1), []
    evaluate = jacobian.evaluate
    monkeypatch.setattr(jacobian, "evaluate", lambda *given: evaluated.append(given[1]) or evaluate(*given))
    V = torch.randn(32, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with J.held():
        inside = J @ V, J.T @ V
        with J.held():
            pass
        torch.testing.assert_close(J @ V, inside[0], rtol=0, atol=0)
    assert evaluated == [1]
    torch.testing.assert_close((J @ V, J.T @ V), inside, rtol=1e-12, atol=1e-12)
    assert evaluated == [1, 1, 1]


def test_triplets_come_from_products_or_the_formed_matrix(monkeypatch):
    J = traced(LLAMA).jacobian(0)
    triplets = J.svd(k=10)
    torch.testing.assert_close(triplets.S, torch.linalg.svdvals(J.dense())[:10])
    assert triplets.U.shape == (32, 10) and triplets.Vh.shape == (10, 32)
    assert float(triplets.residual.max()) < 1e-12
    asked = []
    monkeypatch.setattr(jacobian, "fewer_products", lambda *given: bool(asked.append(given)) or True)
    J = traced(GPT2).jacobian(1)
    found = J.svd(3)
    assert asked == [(32, 3)] and "_dense" not in J.__dict__
    torch.testing.assert_close(found.S, torch.linalg.svdvals(J.dense())[:3], rtol=1e-9, atol=0)
    J = traced(GPT2).jacobian(1)

    def undecided(operator, k):
        if operator is J:
            raise UntrustworthyResultError("too many columns")
        return cl.top_triplets(operator, k)

    monkeypatch.setattr(jacobian, "top_triplets", undecided)
    found = J.svd(3, formed=False)
    torch.testing.assert_close(found.S, torch.linalg.svdvals(J.dense())[:3], rtol=1e-9, atol=0)


USES = {
    "dense": lambda J: J.dense(),
    "product": lambda J: J @ torch.ones(32),
    "transposed product": lambda J: J.T @ torch.ones(32),
    "svd": lambda J: J.svd(2),
    "svd by products": lambda J: J.svd(2, formed=False),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_jacobian_between_unattended_tokens_is_refused(use):
    assert refused(UntrustworthyResultError, "", use, traced(LLAMA).jacobian(1, 8, 3)) == (
        "the Jacobian of 'llama', block 1, token 8 -> 3 is zero: position 3 does not attend to position 8, a later "
        "one; in a causal model that is so by construction: exchange the two, token_in=3 and token_out=8"
    )
    outside, message = traced(named("mistral-window")), "10 does not attend to position 0 in this block.*take one"
    refused(UntrustworthyResultError, message, use, outside.jacobian(1, 0, 10))


def test_hidden_states_boundary_differs_only_at_last_block():
    trace = traced(LLAMA)
    released = [trace.jacobian(block, boundary="hidden_states").dense() for block in range(3)]
    ours = [trace.jacobian(block).dense() for block in range(3)]
    assert torch.equal(released[0], ours[0]) and torch.equal(released[1], ours[1])
    leaf = trace.calls[-1].input.clone().requires_grad_(True)
    after_norm = trace.model.hf.model.norm(trace.calls[-1].replay(trace.model.blocks.modules[-1], leaf))[0, -1]
    wanted = rows(after_norm, leaf)[:, -1] - torch.eye(32, dtype=torch.float64)
    assert relative_error(released[2], wanted) < 1e-6
    assert relative_error(ours[2], wanted) > 0.1
    last = (trace.n_tokens - 1,) * 2
    assert torch.equal(cl.block_jacobians(trace, -1, [last], "hidden_states")[0], released[2])


@pytest.mark.parametrize("factor", [1.5, torch.nan])
def test_replay_that_differs_from_model_is_refused(factor):
    trace = tracing.trace(model := cl.wrap_model(LLAMA.build(), name="llama"), example(model.hf))
    with torch.no_grad():
        trace.model.blocks.modules[1].mlp.down_proj.weight.mul_(factor)
    trace.jacobian(0).dense()
    refused(UntrustworthyResultError, "replayed on its own", trace.jacobian(1).dense)


HALF = r"^token_in is 2\.0; this input has 11 tokens, 0 to 10; give one as a whole number$"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(block=3), r"block is 3; llama has 3, counted from 0"),
        (dict(block=0, token_in=11), r"token_in is 11; this input has 11 tokens"),
        (dict(block=0, token_out=-12), r"token_out is -12"),
        (dict(block=0, boundary="logits"), r"boundary is 'logits'"),
        (dict(block=1.5), r"^block is 1\.5; llama has 3, counted from 0; give a whole number from 0 to 2$"),
        (dict(block=True), r"block is True; .* give a whole number"),
        (dict(block="1"), r"block is '1'; .* give a whole number"),
        (dict(block=None), r"block is None; .* give a whole number"),
        (dict(block=np.float64(1)), r"block is np\.float64\(1\.0\); .* give a whole number"),
        (dict(block=0, token_in=2.0), HALF),
        (dict(block=0, token_out=False), r"token_out is False; .* whole number"),
    ],
)
def test_impossible_jacobian_arguments_are_refused(arguments, message):
    refused(ParameterError, message, traced(LLAMA).jacobian, **arguments)


def test_numpy_integers_index_blocks_and_tokens():
    J = traced(LLAMA).jacobian(block=np.int64(-1), token_in=np.int32(3), token_out=np.int64(-1))
    assert (J.block, J.token_in, J.token_out) == (2, 3, 10)
    assert [type(x) for x in (J.block, J.token_in, J.token_out)] == [int, int, int]
    with pytest.raises(ParameterError, match=r"\(Tensor of torch\.complex64\); give a torch tensor"):
        traced(GPT2).jacobian(1) @ torch.ones(32, dtype=torch.complex64)


@pytest.mark.parametrize("formed", [False, True], ids=["products", "formed"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ">f8", "int64", "bool"])
def test_numpy_factor_gives_the_same_tensor(dtype, formed):
    J = traced(GPT2).jacobian(1)
    V = (np.arange(96).reshape(32, 3) % 5).astype(dtype)
    wanted = J.dense() @ torch.from_numpy(V.astype("float64"))
    operator = J if formed else traced(GPT2).jacobian(1)
    turned = J.dense().T @ torch.from_numpy(V.astype("float64"))
    pairs = [(operator @ V, wanted), (operator @ V[:, 1], wanted[:, 1]), (operator @ V[:, ::-1], wanted.flip(1))]
    for found, right in [*pairs, (operator.T @ V, turned)]:
        assert isinstance(found, torch.Tensor) and found.dtype == torch.float64
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12)


NOT_FINITE = "the factor holds NaN or infinite values in "


@pytest.mark.parametrize("formed", [False, True], ids=["products", "formed"])
@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (torch.full((32, 2), torch.nan), NOT_FINITE + "64 of 64 entries; give finite ones"),
        (np.array([0.0] * 31 + [np.inf]), NOT_FINITE + "1 of 32 entries; give finite ones"),
        ([1.0, 2.0], "the factor is [1.0, 2.0] (list); give a torch tensor or a numpy array of real numbers"),
        ("V", "the factor is 'V' (str); give a torch tensor or a numpy array of real numbers"),
        (None, "the factor is None (NoneType); give a torch tensor or a numpy array of real numbers"),
        (2.0, "the factor is 2.0 (float); give a torch tensor or a numpy array of real numbers"),
        (np.array(["a"]), "the factor is array(['a'], dtype='<U1') (ndarray of <U1); give a torch tensor or a numpy "
                          "array of real numbers"),
        (np.zeros(31), "the factor has shape (31,); (32,) or (32, m) fits"),
        (np.zeros((32, 1, 1)), "the factor has shape (32, 1, 1); (32,) or (32, m) fits"),
    ],
    ids=["nan", "infinite", "list", "text", "none", "number", "texts", "length", "dimensions"],
)  # fmt: skip
def test_invalid_factors_are_refused(factor, message, formed):
    J = traced(GPT2).jacobian(1)
    if formed:
        J.dense()
    for operator in (J, J.T):
        with pytest.raises(ParameterError) as refused:
            operator @ factor
        assert str(refused.value) == message


@pytest.mark.parametrize("formed", [False, True], ids=["products", "formed"])
def test_a_product_that_overflows_is_refused(formed):
    J = traced(GPT2).jacobian(1)
    if formed:
        J.dense()
    huge = torch.full((32,), 1.7e308, dtype=torch.float64)
    for operator in (J, J.T):
        refused(
            UntrustworthyResultError, r"infinite in torch\.float64, .* is 2e\+308; scale", operator.__matmul__, huge
        )


def test_overwriting_the_dense_matrix_leaves_jacobian_unchanged():
    J = traced(GPT2).jacobian(1)
    wanted = J.dense()
    J.dense().zero_()
    J.T.dense().zero_()
    assert torch.equal(J.dense(), wanted)
    assert torch.equal(J @ torch.eye(32, dtype=torch.float64), wanted)
