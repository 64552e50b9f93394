"""Block Jacobians of every family against brute force, and the operator's algebra."""

import numpy as np
import pytest
import torch
from families import Family, each_family, loaded, named
from reference import brute_force_jacobian, relative_error, rows
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.jacobian import differentiate
from coupling_lib.jacobian import operator as jacobian

# (last, last), (middle, middle), t1 < t2; token positions of an 11-token prompt, or of the patches of an image.
PAIRS = [(-1, -1), (5, 5), (7, 9)]
pytestmark = pytest.mark.usefixtures("small_layers_count_as_large")
LLAMA, GPT2 = named("llama"), named("gpt2")
close = torch.testing.assert_close


def example(hf) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if hf.main_input_name == "pixel_values":
        return torch.randn(1, 3, 16, 16, generator=generator, dtype=torch.float64).to(hf.dtype)
    return torch.randint(1, 64, (1, 11), generator=generator)


def traced(family: Family, dtype: torch.dtype = torch.float64) -> cl.Trace:
    model = loaded(family, dtype)
    return cl.trace(model, example(model.hf))


@pytest.fixture(name="J", params=["products", "formed"])
def either_way(request):
    """A Jacobian that multiplies by products with its block, or by its own matrix."""
    J = traced(GPT2).jacobian(1)
    if request.param == "formed":
        J.dense()
    return J


@each_family()
def test_jacobian_equals_brute_force_in_every_family(family, family_table):
    traces = {"float64": traced(family), "float32": traced(family, torch.float32)}
    trace = traces["float64"]
    assert trace.route == traces["float32"].route == family.route
    worst, pairs = dict.fromkeys(traces, 0.0), PAIRS + [(9, 7)] * family.bidirectional
    assert trace.n_blocks == 3
    for block, module in enumerate(trace.model.blocks.modules):
        for pair in pairs:
            pair = pair[0] % trace.n_tokens, pair[1] % trace.n_tokens
            wanted = brute_force_jacobian(trace.model.hf, module, trace.inputs, *pair)
            for name, each in traces.items():
                found = each.jacobian(block, *pair).dense()
                assert found.dtype == getattr(torch, name)
                worst[name] = max(worst[name], relative_error(found, wanted))
    family_table.append((family.name, trace.route, *worst.values()))
    assert worst["float64"] < (1e-10 if family.wide else 1e-5)
    assert worst["float32"] < 1e-4


@each_family()
def test_jacobians_of_many_tokens_equal_single_ones(family):
    trace = traced(family)
    last = trace.n_tokens - 1
    # Pairs of two tokens lie within a sliding window of four, so that none is zero.
    for pairs in ([(0, 0), (3, 3), (6, 6), (last, last)], [(2, 4), (5, 6), (6, 7)]):
        for pair, J in zip(pairs, cl.block_jacobians(trace, 1, pairs), strict=True):
            assert relative_error(J, trace.jacobian(1, *pair).dense()) < 1e-6


@each_family()
def test_products_both_ways_equal_the_dense_matrix(family):
    V = torch.randn(32, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def products(J):
        return J @ V, J.T @ V, J @ V[:, 0], J.T @ V[:, 0]

    for pair in PAIRS + [(9, 7)] * family.bidirectional:
        lazy, formed = traced(family).jacobian(1, *pair), traced(family).jacobian(1, *pair)
        wanted = products(formed.dense())
        close(products(lazy), wanted, rtol=1e-5, atol=1e-6)
        close(products(formed), wanted)
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
        close(J @ V, inside[0], rtol=0, atol=0)
    assert evaluated == [1]
    close((J @ V, J.T @ V), inside, rtol=1e-12, atol=1e-12)
    assert evaluated == [1, 1, 1]


def test_triplets_come_from_products_or_the_formed_matrix(monkeypatch):
    J, asked = traced(LLAMA).jacobian(0), []
    U, S, Vh, residual = J.svd(k=10)
    close(S, torch.linalg.svdvals(J.dense())[:10])
    assert (U.shape, Vh.shape, residual.shape) == ((32, 10), (10, 32), (10,)) and float(residual.max()) < 1e-12
    monkeypatch.setattr(jacobian, "fewer_products", lambda *given: bool(asked.append(given)) or True)
    J = traced(GPT2).jacobian(1)
    found = J.svd(3)
    assert asked == [(32, 3)] and "_dense" not in J.__dict__
    wanted = torch.linalg.svdvals(J.dense())[:3]
    close(found.S, wanted, rtol=1e-9, atol=0)
    J = traced(GPT2).jacobian(1)

    def undecided(operator, k):
        if operator is J:
            raise UntrustworthyResultError("too many columns")
        return cl.top_triplets(operator, k)

    monkeypatch.setattr(jacobian, "top_triplets", undecided)
    close(J.svd(3, formed=False).S, wanted, rtol=1e-9, atol=0)


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
    close(released[:2], ours[:2], rtol=0, atol=0)
    leaf = trace.calls[-1].input.clone().requires_grad_(True)
    after_norm = trace.model.hf.model.norm(trace.calls[-1].replay(trace.model.blocks.modules[-1], leaf))[0, -1]
    wanted = rows(after_norm, leaf)[:, -1] - torch.eye(32, dtype=torch.float64)
    assert relative_error(released[2], wanted) < 1e-6 and relative_error(ours[2], wanted) > 0.1
    last = (trace.n_tokens - 1,) * 2
    assert torch.equal(cl.block_jacobians(trace, -1, [last], "hidden_states")[0], released[2])


@pytest.mark.parametrize("factor", [1.5, torch.nan])
def test_replay_that_differs_from_model_is_refused(factor):
    trace = cl.trace(model := cl.wrap_model(LLAMA.build(), name="llama"), example(model.hf))
    with torch.no_grad():
        trace.model.blocks.modules[1].mlp.down_proj.weight.mul_(factor)
    trace.jacobian(0).dense()
    refused(UntrustworthyResultError, "replayed on its own", trace.jacobian(1).dense)


WHOLE = "give a whole number"
HALF = r"^token_in is 2\.0; this input has 11 tokens, 0 to 10; give one as a whole number$"
IMPOSSIBLE = [
    (lambda t: cl.block_jacobians(t, 1, [(1, 1), (1, 2)]), "mixes t1 = t2 with t1 != t2"),
    (
        lambda t: cl.block_jacobians(t, 1, [(-1, -1)]),
        r"pairs is \[\(-1, -1\)\]; expected \(t1, t2\), ... with t from 0",
    ),
    (lambda t: cl.block_jacobians(t, 1, [(1.0, 1)]), "pairs is .*1.0, 1.*; expected"),
    (lambda t: cl.block_jacobians(t, 1, []), r"pairs is \[\]; expected"),
    (lambda t: cl.block_jacobians(t, 1, (1, 1)), r"pairs is \(1, 1\); expected"),
    (lambda t: cl.block_jacobians(t, 9, [(1, 1)]), "block is 9; it must be a whole number from"),
    (lambda t: t.jacobian(3), r"block is 3; llama has 3, counted from 0"),
    (lambda t: t.jacobian(0, token_in=11), r"token_in is 11; this input has 11 tokens"),
    (lambda t: t.jacobian(0, token_out=-12), r"token_out is -12"),
    (lambda t: t.jacobian(0, boundary="logits"), r"boundary is 'logits'"),
    (lambda t: t.jacobian(1.5), rf"^block is 1\.5; llama has 3, counted from 0; {WHOLE} from 0 to 2$"),
    (lambda t: t.jacobian(True), f"block is True; .* {WHOLE}"),
    (lambda t: t.jacobian("1"), f"block is '1'; .* {WHOLE}"),
    (lambda t: t.jacobian(None), f"block is None; .* {WHOLE}"),
    (lambda t: t.jacobian(np.float64(1)), rf"block is np\.float64\(1\.0\); .* {WHOLE}"),
    (lambda t: t.jacobian(0, token_in=2.0), HALF),
    (lambda t: t.jacobian(0, token_out=False), r"token_out is False; .* whole number"),
]


@pytest.mark.parametrize(("call", "message"), IMPOSSIBLE)
def test_impossible_blocks_tokens_and_boundaries_are_refused(call, message):
    refused(ParameterError, message, call, traced(LLAMA))


def test_numpy_integers_index_blocks_and_tokens():
    J = traced(LLAMA).jacobian(block=np.int64(-1), token_in=np.int32(3), token_out=np.int64(-1))
    assert [(type(x), x) for x in (J.block, J.token_in, J.token_out)] == [(int, 2), (int, 3), (int, 10)]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ">f8", "int64", "bool"])
def test_numpy_factor_gives_the_same_tensor(dtype, J):
    V, dense = (np.arange(96).reshape(32, 3) % 5).astype(dtype), traced(GPT2).jacobian(1).dense()
    W = torch.from_numpy(V.astype("float64"))
    found = J @ V, J @ V[:, 1], J @ V[:, ::-1], J.T @ V
    close(found, (dense @ W, dense @ W[:, 1], dense @ W.flip(1), dense.T @ W), rtol=1e-9, atol=1e-12)


NOT_FINITE, KIND = "the factor holds NaN or infinite values in ", "give a torch tensor or a numpy array of real numbers"
FACTORS = {
    "nan": (torch.full((32, 2), torch.nan), NOT_FINITE + "64 of 64 entries; give finite ones"),
    "infinite": (np.array([0.0] * 31 + [np.inf]), NOT_FINITE + "1 of 32 entries; give finite ones"),
    "list": ([1.0, 2.0], f"the factor is [1.0, 2.0] (list); {KIND}"),
    "text": ("V", f"the factor is 'V' (str); {KIND}"),
    "none": (None, f"the factor is None (NoneType); {KIND}"),
    "number": (2.0, f"the factor is 2.0 (float); {KIND}"),
    "texts": (np.array(["a"]), f"the factor is array(['a'], dtype='<U1') (ndarray of <U1); {KIND}"),
    "length": (np.zeros(31), "the factor has shape (31,); (32,) or (32, m) fits"),
    "dimensions": (np.zeros((32, 1, 1)), "the factor has shape (32, 1, 1); (32,) or (32, m) fits"),
}


@pytest.mark.parametrize(("factor", "message"), FACTORS.values(), ids=FACTORS)
def test_invalid_factors_are_refused(factor, message, J):
    for operator in (J, J.T):
        assert refused(ParameterError, "", operator.__matmul__, factor) == message
    message = r"\(Tensor of torch\.complex64\); give a torch tensor"
    refused(ParameterError, message, J.__matmul__, torch.ones(32, dtype=torch.complex64))


def test_a_product_that_overflows_is_refused(J):
    huge, message = torch.full((32,), 1.7e308, dtype=torch.float64), r"infinite in torch\.float64, .* is 2e\+308; scale"
    for operator in (J, J.T):
        refused(UntrustworthyResultError, message, operator.__matmul__, huge)


def test_overwriting_the_dense_matrix_leaves_jacobian_unchanged():
    J = traced(GPT2).jacobian(1)
    wanted = J.dense()
    J.dense().zero_()
    J.T.dense().zero_()
    assert torch.equal(J.dense(), wanted)
    assert torch.equal(J @ torch.eye(32, dtype=torch.float64), wanted)


@pytest.mark.parametrize("largest", [0, 1, None], ids=["first shaken", "second shaken", "float64"])
def test_rounding_bound_is_sixteen_largest_changes(monkeypatch, largest):
    def changed(trace, block, pairs, boundary, shaken=None, wide=False):
        x = torch.zeros(1, 32, requires_grad=True)
        change = 0.005 if shaken == largest else 0.002
        return x, x * (1 + change * (wide or shaken is not None))

    monkeypatch.setattr(differentiate, "evaluate", changed)
    u = torch.randn(32, generator=torch.Generator().manual_seed(0))
    J = traced(GPT2, torch.float32).jacobian(1, 2, 3)
    assert J.error == pytest.approx(16 * 0.005 * float(u.norm()), rel=1e-3)
