"""Draws the film at the top of the README and the card of a shared link, from what the story of the front page shows.

Both are committed files, in `book/_static`. Run by `make film`, in a tree in which the book was built.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import story
from matplotlib.figure import Figure
from PIL import Image

from companion.figures import story as figures
from companion.figures import style
from companion.tables import generalization
from coupling_lib import paths

OUT = paths.ROOT / "book" / "_static"
FILM, CARD = OUT / "story.gif", OUT / "card.png"
LARGEST = 3_000_000
STILL, PASSING, BETWEEN = 1600, 90, 6
"""Milliseconds of a stop and of a picture between two, and how many of these there are."""
COLOURS, SIZE, CARD_SIZE = 128, (style.WIDTH, 2.7), (7.5, 3.9375)


def scenes(drawn: dict, steps: list[int]) -> Iterator[tuple[Callable[[Figure], None], int]]:
    """List what the film shows, a function that draws it on a figure, and for how many milliseconds."""
    training, top, stops = drawn[story.MODEL], figures.highest(drawn), [steps.index(step) for step in story.STOPS]
    for first, second in pairwise([*stops, stops[-1]]):
        yield lambda figure, at=first: figures.draw_training(figure, training, at, top), STILL
        for at in np.linspace(first, second, BETWEEN + 2)[1:-1] if second > first else ():
            yield lambda figure, at=float(at): figures.draw_training(figure, training, at, top), PASSING
    maps = {name: drawn[name] for name in drawn if name in story.SHORT.values()}
    yield lambda figure: figures.draw_decoders(figure, maps, top), 2 * STILL
    yield lambda figure: figures.draw_paper(figure, drawn[figures.PAPER]), 2 * STILL


def picture(draw: Callable[[Figure], None]) -> Image.Image:
    """Draw a scene as an image."""
    figure = Figure(figsize=SIZE, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    draw(figure)
    return on_page(figure, 112)


def on_page(figure: Figure, dpi: int) -> Image.Image:
    """Draw a figure on a page of the current theme."""
    drawn = Image.open(io.BytesIO(style.save_png(figure, dpi))).convert("RGBA")
    page = Image.new("RGBA", drawn.size, style.colour("page"))
    page.alpha_composite(drawn)
    return page.convert("RGB")


def card(drawn: dict, step: int) -> Image.Image:
    """Draw the picture of a shared link: the title over a moment of the training, on a dark page."""
    figure = Figure(figsize=CARD_SIZE, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 2.4))
    above.text(0.03, 0.55, "Transformer Block Coupling", fontsize=25, fontweight="bold", va="center")
    above.text(0.03, 0.12, "Coupling comes and goes while a small model learns", fontsize=14, va="center")
    figures.draw_training(below, drawn[story.MODEL], step, figures.highest(drawn))
    return on_page(figure, 160)


def write() -> None:
    """Write the film and the card."""
    one = story.training()
    drawn = figures.take_stills(one, story.decoders(), generalization.figure_1a())
    steps = one.step.values.tolist()
    with style.theme("light"):
        shown = [(picture(draw), milliseconds) for draw, milliseconds in scenes(drawn, steps)]
    with style.theme("dark"):
        card(drawn, steps.index(100)).quantize(COLOURS, kmeans=1).save(CARD, optimize=True)
    # One palette for all, of what is shown at the peak and at the end.
    wide, high = shown[0][0].size
    both = Image.new("RGB", (wide, 2 * high))
    for at, (image, _) in enumerate((shown[3 * (BETWEEN + 1)], shown[-1])):
        both.paste(image, (0, at * high))
    palette = both.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image, _ in shown]
    durations = [milliseconds for _, milliseconds in shown]
    images[0].save(FILM, save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    if FILM.stat().st_size > LARGEST:
        raise SystemExit(f"error: {FILM.name} has {FILM.stat().st_size:,} bytes; at most {LARGEST:,}")
    print(f"   {FILM.name}: {len(images)} pictures, {FILM.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    write()
