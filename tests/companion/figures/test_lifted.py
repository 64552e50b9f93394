"""Every figure of every chapter is lifted in three lines: a measurement, what is taken of it, the drawing.

    ds = cl.measure_depth(model, prompts)
    array = depth.take_map(ds, null=cl.null_of(ds, "normalized_miscoupling"))
    depth.draw_map(array)

Of one network, two and three, with nothing else given than what is `OF_TRAINED` or `OF_EACH`. Figures that show one
model over training or in several precisions, and tables of models, have one source.
"""

import inspect
import pkgutil
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import tiny
from matplotlib.figure import Figure

import companion.figures
import coupling_lib as cl
from companion.figures import depth, show, spectra, take
from companion.figures.generalization import READING
from companion.tables import correlations, edits, generalization, photographs, prompt_effects, vit_grid
from companion.tables.arrays import records_of, side_by_side
from companion.tables.lenses import measure_readouts, words_of
from companion.training.drop_path import measure_drop_path
from coupling_lib.datasets.summaries import chance
from coupling_lib.errors import ParameterError
from coupling_lib.measures.nulls import measure_decisive, measure_nulls, null_curves
from coupling_lib.measures.prompts import prompt_versions
from coupling_lib.measures.random_bases import null_with_draws, spectra_null
from coupling_lib.measures.spectra import spectra_fits
from tests.companion.figures import test_story
from tests.companion.figures.drawn import assert_good_pictures
from tests.companion.tables import test_decoder_scores

QUESTIONS = [prompt for prompt in cl.load_prompts() if prompt.steps is not None][:2]


@cache
def network(role: str) -> cl.Model:
    """A random network of 3 blocks, each of other weights."""
    return cl.wrap_model(tiny.llama(seed=ROLES.index(role)), tiny.tokenizer())


@cache
def of_pictures(role: str) -> cl.Model:
    return cl.load_model("nano-vit", untrained=role != "trained", seed=ROLES.index(role))


def of_text(measure: Callable[..., Any], **settings: Any) -> Callable[[str], Any]:
    return lambda name: measure(network(name), tiny.TEXT, **settings)


def of_image(measure: Callable[..., Any], **settings: Any) -> Callable[[str], Any]:
    return lambda name: measure(of_pictures(name), cl.inputs_for(of_pictures(name), ["one", "two"]), **settings)


def shipped(name: str) -> Callable[[], Any]:
    """The table that a module of `companion.tables` reads in a function of its own name."""
    return lambda: getattr(import_module(f"companion.tables.{name}"), name)()


def last() -> Any:
    return correlations.last_checkpoints(generalization.suite())


MEASURES: dict[str, Callable[[str], Any]] = {
    "depth": of_text(cl.measure_depth, ks=(4,)),
    "readings": of_text(cl.measure_depth, ks=(4, 8)),
    "spectra": of_text(cl.measure_spectra, k=4, whole=(0, 2)),
    "dynamics": of_text(cl.measure_dynamics, k=4),
    "perturbation": of_text(cl.measure_perturbation, draws=2),
    "lenses": of_text(measure_readouts, fitted_on=("It was the age of wisdom", "What is a whale? A whale is")),
    "trajectories": of_text(cl.measure_trajectories),
    "tokens": of_text(cl.measure_tokens, block=1, k=4),
    "prompts": lambda name: cl.measure_prompts(network(name), prompt_versions(network(name), QUESTIONS), ks=(4,)),
    "nulls": of_text(measure_nulls, ks=(4,)),
    "nulls.figure_1a": of_text(measure_decisive, ks=(4,)),
    "vision_model.image": of_image(cl.measure_depth, ks=(4,)),
    "vision_model.relations": of_image(cl.measure_relations, k=4),
}
"""What measures a network, by module, or by module and figure where they differ."""

ONE: dict[str, Callable[[], Any]] = {
    "emergence": lambda: cl.measure_emergence("nano-neox", tiny.TEXT, steps=(0, 1000, 10000), ks=(4,)),
    "precision": lambda: cl.measure_precision("nano-neox", tiny.TEXT, ["bfloat16"], k=4),
    "vision_model.drop_path": lambda: of_image(measure_drop_path, k=4, draws=2)("trained"),
    "schematic": lambda: 1,  # a seed
    "lenses.readout": lambda: words_of(cl.lens(cl.trace(network("trained"), tiny.TEXT[0]))),
    "nulls.curves": lambda: null_curves(widths=(32, 64), ks=(4,), n_samples=2),
    "vision": vit_grid.read_grid,
    "vision.pairs": photographs.pairs,
    "paper_models": generalization.figure_1a,
    "paper_models.measured": generalization.measured_models,
    "paper_models.each_k": last,
    "many_prompts": lambda: prompt_effects.chosen("nano-neox"),
    "edits": lambda: edits.finished(edits.edits()),
    "generalization": generalization.suite,
    "generalization.sign": lambda: correlations.sign_along_training(generalization.suite(), "negative_loss", READING),
    "generalization.shapes": lambda: {
        "The paper's figure 1a": (generalization.figure_1a().coupling, generalization.figure_1a().score),
        "The suite": (last()[READING], last().negative_loss),
    },
    "generalization.paper": generalization.figure_1a,
    "generalization.variants": lambda: correlations.equal_tokens(last()),
    "generalization.rivals": last,
    "generalization.leaderboard": generalization.leaderboard,
    "decoder_scores": test_decoder_scores.known,
    "story": lambda: test_story.made_up()[0],
    "phases.long": shipped("later"),
    **{name: shipped(name) for name in ("phases", "regularised", "rivals", "width")},
}
"""What is one source by nature: a model over training or in several precisions, a simulation, a table of models."""

MORE: dict[str, Callable[[], tuple[Any, ...]]] = {
    "story.stills": lambda: (test_story.made_up()[1], generalization.figure_1a()),
    "vision_model.image": lambda: (np.zeros((16, 16)),),
    "vision_model.drop_path": lambda: (0.95,),
    "paper_models.measured": lambda: (generalization.leaderboard(),),
    "generalization.sign": lambda: (generalization.suite(untrained=True),),
}
"""What some figures show beside it: a picture, a null, families of models."""


SHARED = {"generalization.sizes": "take_suite", "vision.accuracy_rates": "take_accuracy"}
"""Figures that draw what another's `take_` selects."""


def null_of(ds: Any) -> Any:
    return cl.null_of(ds, take.VARIANT, n_samples=300)


OF_TRAINED: dict[str, dict[str, Callable[[Any], Any]]] = {
    **{f"depth.{name}": {"null": null_of} for name in ("map", "graph", "distribution", "models")},
    **{f"prompts.{name}": {"null": null_of} for name in ("prompts", "versions", "models")},
    "tokens.grid": {"null": null_of},
    "tokens.summary": {"nulls": null_with_draws},
    "vision_model.relations": {"nulls": null_of},
}
OF_EACH: dict[str, dict[str, Callable[[Any], Any]]] = {
    "spectra.inverse": {"fits": spectra_fits},
    "spectra.alignment": {"nulls": spectra_null},
    **{f"readings.{name}": {"nulls": cl.null_of} for name in ("values", "beyond_chance", "choices", "boundaries")},
}
"""What else some figures are handed of the trained network, or of each: its null, or lines through its spectra."""


def figures() -> dict[str, tuple[Callable[..., Figure], Callable[..., Any]]]:
    """Every function that draws a figure, by module and name, with what takes its data."""
    found = {}
    for file in pkgutil.iter_modules(companion.figures.__path__):
        module = import_module(f"companion.figures.{file.name}")
        for name, draw in inspect.getmembers(module, inspect.isfunction):
            makes_one = name.startswith("draw_") and inspect.signature(draw).return_annotation is Figure
            if makes_one and draw.__module__ == module.__name__ and file.name != "postnorm":  # a table of the book's
                figure = name.replace("draw_", f"{file.name}.")
                found[figure] = draw, getattr(module, SHARED.get(figure, name.replace("draw", "take")))
    return found


ROLES = ("trained", "untrained", "traceless part")
FIGURES = figures()


@cache
def measured(source: str, role: str = "") -> Any:
    return MEASURES[source](role) if role else ONE[source]()


def source_of(figure: str, table: dict[str, Any]) -> str | None:
    return next((name for name in (figure, figure.partition(".")[0]) if name in table), None)


def taken(figure: str, networks: int) -> Any:
    """What a figure draws, of so many networks, with all its defaults."""
    (_, select), more = FIGURES[figure], MORE.get(figure, tuple)()
    if source := source_of(figure, ONE):
        return select(measured(source), *more)
    source = source_of(figure, MEASURES)
    found = {role: measured(source, role) for role in reversed(ROLES[:networks])}

    def together(each: dict[str, Any]) -> Any:
        return side_by_side(**each) if networks > 1 else each["trained"]

    known = {name: of(found["trained"]) for name, of in OF_TRAINED.get(figure, {}).items()}
    for name, of in OF_EACH.get(figure, {}).items():
        known[name] = together({role: of(ds) for role, ds in found.items()})
    return select(together(found), *more, **known)


SIZES = [(2,), pytest.param((1, 3), marks=pytest.mark.thorough)]
"""Numbers of networks that stand beside each other; the last of several is drawn in the dark, too."""


@pytest.mark.parametrize("sizes", SIZES, ids=["two", "one or three"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn_with_default_arguments(figure, sizes):
    draw, _ = FIGURES[figure]
    pictures = []
    for networks in sizes[:1] if source_of(figure, ONE) else sizes:
        data = taken(figure, networks)
        table = show.frame(data)
        assert len(table) and "numbers" in show.fingerprint(table)
        assert source_of(figure, ONE) or len(records_of(data)) == networks
        pictures.append(partial(draw, data))
    assert_good_pictures(pictures, dark=len(sizes) > 1)


def test_networks_of_different_sizes_stand_side_by_side():
    small, last = measured("depth", "trained"), cl.measure_depth(cl.load_model("nano-neox"), tiny.TEXT, ks=(4,))
    null = cl.null_of(last, ["mismatch", take.VARIANT])
    found = depth.take_map(side_by_side(small=small, nano=last), null=null)
    wanted = chance(null.sel(variant=take.VARIANT))
    assert (found.null, found.null.error) == (wanted, wanted.error) and 0 < wanted.error < 1e-3
    several = measured("readings", "trained")
    null = cl.null_of(several, ["mismatch", take.VARIANT], n_samples=300)
    assert depth.take_map(several, "mismatch", 8, null).null == float(null.value.sel(variant="mismatch", k=8).mean())
    assert found.notnull().sum(["block_jacobian", "block_vectors"]).values.tolist() == [3 * 2, 12 * 11]
    assert isinstance(depth.draw_map(found), Figure)


def test_figure_without_its_null_or_fits_is_refused():
    ds = measured("depth", "trained")
    with pytest.raises(ParameterError, match=r"null is None; coupling .* pass what cl.null_of\(ds, 'normalized_"):
        depth.take_map(ds)
    with pytest.raises(ParameterError, match="the null is of mismatch; 'normalized_miscoupling' is drawn: pass what"):
        depth.take_map(ds, null=cl.null_of(ds, "mismatch", n_samples=2))
    needed = "fits is None; this figure needs one of each network: fits = spectra_fits"
    with pytest.raises(ParameterError, match=needed):
        spectra.take_inverse(measured("spectra", "trained"))
