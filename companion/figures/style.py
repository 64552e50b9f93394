"""Style of all figures of the book: colours with a meaning, two themes, files that repeat byte for byte.

A colour stands for one thing wherever it appears. The hues are Okabe and Ito's, which readers with any of the common
colour-vision deficiencies tell apart; the dark theme takes the lighter member of the same hue, so that every line
keeps a contrast of at least 3:1 with its page.
"""

import io
import re
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

from coupling_lib.models import registry

Theme = Literal["light", "dark"]

TRAINED, UNTRAINED, SHARED, NULL = "trained", "untrained", "traceless part", "null"
"""Roles: a model after training and at initialisation, its part in shared directions, and random bases."""

WIDTH = 7.5
"""Width of a figure in inches: 720 CSS pixels, the column of the book."""

NARROW = 4.12
"""Largest width of a panel with its labels, in inches, that a phone shows whole with a smallest text of 8 points."""

# On a light and on a dark page. Page, text, faint and mask belong to the layout; the rest are roles.
_COLOURS = {
    "page": {"light": "#ffffff", "dark": "#121212"},
    "text": {"light": "#222222", "dark": "#e4e4e4"},
    "faint": {"light": "#d5d5d5", "dark": "#4a4a4a"},
    "mask": {"light": "#c4c4c4", "dark": "#5a5a5a"},
    TRAINED: {"light": "#0072b2", "dark": "#56b4e9"},
    UNTRAINED: {"light": "#d55e00", "dark": "#f08a3c"},
    SHARED: {"light": "#6a4c93", "dark": "#9575cd"},
    NULL: {"light": "#6f6f6f", "dark": "#a3a3a3"},
}

_FAMILY_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#b0568a", "#b07d00", "#3b8fc4", "#555555"),
    "dark": ("#56b4e9", "#f08a3c", "#2fc59a", "#e29ac0", "#f0c02e", "#9fd3f2", "#c8c8c8"),
}
_FAMILY_MARKERS = "osD^vP"
# The order fixes each family's colour and marker: new families are appended.
_FAMILIES = (
    "Pythia", "Llama-3", "Llama-2", "Gemma", "Falcon", "Mistral", "GPT-2",
    "Phi", "OLMo", "MPT", "Qwen1.5", "Qwen2", "GPT-NeoX", "GPT-Neo",
    "CodeLlama", "Orca-2", "Vicuna", "CodeGemma", "nano-neox", "nano-llama", "ViT",
)  # fmt: skip

_TEXTS = (
    "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "legend.labelcolor", "text.color", "xtick.color",
    "ytick.color",
)  # fmt: skip
_SETTINGS = {
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.grid", "legend.frameon"), False),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.7),
    **dict.fromkeys(("axes.labelsize", "font.size"), 9),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    "figure.dpi": 96,
    "savefig.bbox": "standard",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "transformer block coupling",
}

_CLIPPED = re.compile(rb'(?<=[#"])p[0-9a-f]{10}(?=[")])')
_PLACED = re.compile(rb'<(?:rect|use) [^>]*/>|(?<= d=")[^"]+|translate\([^)]*\)')
_NUMBER = re.compile(rb"\d+\.\d{4,}")

_theme: ContextVar[Theme] = ContextVar("theme", default="light")


@contextmanager
def theme(name: Theme) -> Generator[None]:
    """Draw everything inside the `with` in one theme."""
    token = _theme.set(name)
    try:
        with matplotlib.rc_context(_SETTINGS | dict.fromkeys(_TEXTS, colour("text")) | {"grid.color": colour("faint")}):
            yield
    finally:
        _theme.reset(token)


def colour(role: str) -> str:
    """Return the colour of a role in the current theme."""
    return _COLOURS[role][_theme.get()]


def null_label(null: float) -> str:
    """Return the label of a null line, with its coupling where that is known to more digits than the axis shows."""
    error = getattr(null, "error", None)
    return "by chance" if error is None or error > 5e-4 else f"by chance {1 - null:.3f}"


def one_digit(error: float) -> str:
    """Format a standard error with one digit and without an exponent, such as "0.00001"."""
    return np.format_float_positional(error, precision=1, fractional=False, trim="-") if error > 0 else "0"


def family_style(family: str) -> tuple[str, str]:
    """Return the colour and the marker of a family of models, the same in every figure."""
    palette = _FAMILY_COLOURS[_theme.get()]
    name = family.split(" (")[0]
    if name not in _FAMILIES:
        return colour(NULL), "o"
    index = _FAMILIES.index(name)
    return palette[index % len(palette)], _FAMILY_MARKERS[index // len(palette)]


def dataset_colour(name: str, position: int) -> str:
    """Return the colour of a data set in a comparison: its role's if it has one, else one that no role has."""
    # The first two of the palette are the hues of trained and untrained.
    palette = _FAMILY_COLOURS[_theme.get()][2:]
    return colour(name) if name in (TRAINED, UNTRAINED, SHARED, NULL) else palette[position % len(palette)]


def marker(position: int) -> str:
    """Return the marker of a place in a comparison."""
    return _FAMILY_MARKERS[position % len(_FAMILY_MARKERS)]


def short_name(name: str, most: int = 99) -> str:
    """Return a model's name without the folders or the organisation before it, cut to `most` letters."""
    short = name.rstrip("/").rsplit("/", 1)[-1]
    short = short if len(short) <= most else f"{short[: most - 1]}…"
    return short.replace("$", r"\$")  # which would begin a formula


def short_names(names: Iterable[str], most: int = 99) -> dict[str, str]:
    """Return the short names of several models; folders of the same name keep the folders before them."""
    short = {name: short_name(name, most) for name in names}
    alike, most = Counter(short.values()), min(most, 30)
    return {name: one if alike[one] == 1 else name[-most:].replace("$", r"\$") for name, one in short.items()}


def model_style(name: str, position: int) -> tuple[str, str]:
    """Return the colour and the marker of a model: its family's where it has one, else those of its position."""
    entry = registry.lookup(name)
    for family in (name, entry.family if entry else ""):
        if family.split(" (")[0] in _FAMILIES:
            return family_style(family)
    return dataset_colour("", position), marker(position)


def ink() -> Colormap:
    """Return the sequential colour map of the current theme, from the page to the strongest contrast."""
    colours = matplotlib.colormaps["magma"](np.linspace(0.0, 1.0, 256))
    if _theme.get() == "light":
        share = np.clip(np.linspace(0.0, 1.0, 256) / 0.2, 0.0, 1.0)[:, None]
        colours = 1 - share + share * colours[::-1]
    return ListedColormap(colours, name="ink").with_extremes(bad=(0, 0, 0, 0))


def middle_tone() -> float:
    """Return the place on `ink` from which a line keeps a contrast of at least 3:1 with its page."""
    return {"light": 0.38, "dark": 0.47}[_theme.get()]


def save_svg(figure: Figure) -> bytes:
    """Write a figure as SVG whose bytes depend on the figure alone."""
    buffer = io.BytesIO()
    # `savefig` would draw everything once more, to solve the layout; the bytes are the same.
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    # The last bit of any place depends on the order in which a layout was solved, and so does a clipped area's name, a
    # hash of its place. A thousandth of a pixel is not seen, and a figure of many points is smaller without the rest.
    names: dict[bytes, bytes] = {}
    named = _CLIPPED.sub(lambda found: names.setdefault(found[0], b"p%d" % len(names)), buffer.getvalue())
    return _PLACED.sub(lambda found: _NUMBER.sub(lambda number: b"%.3f" % float(number[0]), found[0]), named)


def save_png(figure: Figure, dpi: int = 192) -> bytes:
    """Write a figure as PNG, by default at two pixels per CSS pixel."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
