"""What the figures of coupling across depth, and of its construction, are drawn from in the tests of all figures."""

from companion.figures import depth
from coupling_lib.measures.random_bases import Chance
from coupling_lib.metrics.summaries import side_by_side
from tests.companion.figures.conftest import make_depth

NAME, NULL = "normalized_miscoupling", Chance(0.95, 9e-6)


def networks(n):
    """Made-up networks: two are the untrained and the trained one, others have names."""
    names = {2: ["untrained", "trained"], 3: ["untrained", "trained", "shared part"]}.get(n, ["model 0"])
    return side_by_side(**{name: make_depth((0.06, 0.4, 0.2)[i], seed=i + 1) for i, name in enumerate(names)})


def models(n):
    """Several models, each before and after training."""
    states = {"untrained": make_depth(0.06, seed=1), "trained": make_depth(0.4, seed=2)}
    return depth.take_models({f"model {i}": states for i in range(n)}, NAME, 4, NULL)


def models_matrices(n):
    """Matrices of several models, of which one lacks a block."""
    names = ["nano-llama", *(f"organisation/model {i}" for i in range(n + 3))]
    found = {name: {"trained": make_depth(0.4, seed=i)} for i, name in enumerate(names)}
    found["nano-llama"]["trained"] = found["nano-llama"]["trained"].isel(block_1=slice(3), block_2=slice(3))
    return depth.take_matrices_of(found, [0, 2, 3], 4)


CASES = {
    "draw_matrices of models": (depth.draw_matrices, models_matrices),
    "draw_graph beyond": (
        depth.draw_graph, lambda n: depth.take_graph(networks(n), NAME, 4, NULL), {"beyond": True},
    ),
    "draw_models in rows": (depth.draw_models, lambda n: models(n + 4)),
}  # fmt: skip
