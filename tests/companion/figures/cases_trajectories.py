"""What the figures of trajectories are drawn from in the tests of all figures."""

from companion.figures import trajectories
from coupling_lib.metrics.summaries import side_by_side
from tests.companion.figures.trajectory_cases import make_trajectories

PATHS, ENTROPIES = ("path", "path_share", "path_token"), ("entropy", "entropy_normed")


def states(n=2, without=()):
    """Made-up measurements: two are the untrained and the trained network, others have names."""
    names = ["untrained", "trained"] if n == 2 else [f"network {i}" for i in range(n)]
    return {name: make_trajectories(seed).drop_vars(without) for seed, name in enumerate(names, start=1)}


def both(n=2, **how):
    return side_by_side(**states(n, **how))


def models(n, **changes):
    """Several models, the second and third with long names."""
    names = ["organisation/model", *(f"organisation/a-model-with-a-long-name-{i}" for i in range(n - 1))]
    return {name: {state: ds.assign(**changes) for state, ds in states().items()} for name in names}


def unlike(n):
    """Models of which the first is deeper and gives no next token, and the last is the only one in the registry."""
    found = models(n) | {"nano-llama": states()}
    deep = {name: make_trajectories(i, n_blocks=12, width=5) for i, name in enumerate(("untrained", "trained"))}
    bare = {name: ds.drop_vars(ENTROPIES).assign_attrs(entropy_missing="no head") for name, ds in deep.items()}
    return found | {next(iter(found)): bare}


def no_growth(n):
    expodistance = make_trajectories(1).expodistance
    return trajectories.take_scores(models(n, expodistance=expodistance * float("nan")))


CASES = {
    "draw_scores of many": (trajectories.draw_scores, lambda n: trajectories.take_scores(models(n + 4))),
    "draw_scores without growth": (trajectories.draw_scores, no_growth),
    "draw_profiles with a line": (
        trajectories.draw_profiles,
        lambda n: trajectories.take_profiles(both(n), turn=-1),
    ),
    "draw_profiles without entropy": (
        trajectories.draw_profiles,
        lambda n: trajectories.take_profiles(both(n, without=ENTROPIES)),
    ),
    "draw_profiles of one prompt": (
        trajectories.draw_profiles,
        lambda n: trajectories.take_profiles(both(n).isel(prompt=[0])),
    ),
    "draw_profiles of models": (
        trajectories.draw_profiles,
        lambda n: trajectories.take_profiles(unlike(n + 1), -1),
    ),
    "draw_paths of models": (
        trajectories.draw_paths,
        lambda n: trajectories.take_paths(unlike(n + 1)),
    ),
}
