r"""Display of figures: in the theme of the page, with the array that it shows and where that came from.

    show(depth.draw_map, depth.take_map(measured), name="depth-mismatch", caption="...")

`draw(data, **options)` is called once for light and once for dark pages, and the page shows the one that suits it: the
book, JupyterLab and plain notebooks alike, and always the light one on paper. The very array that is drawn is offered
as CSV; its shortest summary stands in the notebook as plain text, so that a notebook that is run again can be compared.
Where it comes from is in the records of the measurements; a notebook says once by which command it was `made_by`.
"""

import base64
import html
import io
import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import xarray as xr
from IPython.display import display
from matplotlib.figure import Figure
from PIL import Image

from companion.figures import style
from companion.tables import origin
from companion.tables.arrays import records_of

LARGEST_SVG = 420_000
"""Bytes above which a drawing is shown as an image of pixels (two per CSS pixel) instead of SVG."""
_PRINT_DPI, _PRINT_COLOURS, _PRINT_CSV = 150, 64, 20_000

_command = ""
"""The command that makes the figures of this process, a notebook's; empty where it has none."""

Data = pd.DataFrame | xr.DataArray | xr.Dataset | Mapping[str, "Data"]

# The book sets data-theme on <html>, JupyterLab data-jp-theme-light on <body>; a page that says neither is light.
_CSS = """
.tbc-figure{margin:1em 0;text-align:center}
.tbc-figure img{max-width:100%;height:auto}
.tbc-figure .only-dark{display:none}
.tbc-figure figcaption{font-size:.875em;line-height:1.4;text-align:left}
.tbc-figure .tbc-provenance{display:block;margin-top:.4em;font-size:.85em;opacity:.8;overflow-wrap:anywhere}
html[data-theme=dark] .tbc-figure .only-light,body[data-jp-theme-light=false] .tbc-figure .only-light{display:none}
html[data-theme=dark] .tbc-figure .only-dark,body[data-jp-theme-light=false] .tbc-figure .only-dark{display:inline}
@media print{html body .tbc-figure img.only-light{display:inline!important}
html body .tbc-figure img.only-dark{display:none!important}}
"""


class BookFigure:
    """A figure ready for a page; its plain text is its name and the summary of its values."""

    def __init__(self, name: str, data: str, text: str) -> None:
        self.name, self.data, self.text = name, data, text

    def __repr__(self) -> str:
        return f"<figure {self.name}: {self.text}>"

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, object]]:
        record = {"scrapbook": {"name": self.name, "mime_prefix": ""}}
        return {"text/html": self.data, "text/plain": repr(self)}, record


def made_by(notebook: str, parameters: Mapping[str, Any]) -> str:
    """Set the command (a notebook's) that all following figures give as their origin, and return it."""
    global _command
    _command = origin.papermill_command(notebook, parameters)
    return _command


def show(
    draw: Callable[..., Figure], data: Data | None, *, name: str, caption: str, provenance: str = "", **options: object
) -> BookFigure | None:
    """Draw data for light and dark pages, and put its table and its origin underneath; without data show nothing."""
    if data is None:
        return None
    provenance = _origin(data, provenance)
    printed = os.environ.get("COUPLING_FIGURES") == "print"
    images = []
    for theme in ("light",) if printed else ("light", "dark"):
        with style.theme(theme):
            drawn = _lettered(draw(data, **options), caption)
            source, wide = _address(drawn, printed), round(720 * drawn.get_figwidth() / style.WIDTH)
        images.append(f'<img class="only-{theme}" src="{source}" alt="{html.escape(caption)}" width="{wide}">')
    table = frame(data)
    text = csv_text(table, name, provenance)
    address = "data:text/csv;charset=utf-8," + quote(text, safe=",:/-+@*()=")
    link = f'<a download="{html.escape(name)}.csv" href="{address}">Data (CSV)</a>'
    if printed and len(text) > _PRINT_CSV:
        link = "(data: run the notebook, or see the book)"
    markup = (
        f'<style>{_CSS}</style><figure class="tbc-figure" data-drawn-by="{draw.__module__}.{draw.__qualname__}">'
        f"{''.join(images)}<figcaption>{html.escape(caption)} {link}"
        f'<span class="tbc-provenance">{html.escape(provenance)}</span></figcaption></figure>'
    )
    return BookFigure(name, markup, fingerprint(table))


def frame(data: Data) -> pd.DataFrame:
    """Convert the data of a figure to a long table: a column per dimension, a row per value; prompts by number."""
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, Mapping) and not isinstance(data, xr.Dataset):
        return pd.concat({name: frame(part) for name, part in data.items()}, names=["model"]).reset_index(level=0)
    plain = data.to_dataset(name=data.name or "value") if isinstance(data, xr.DataArray) else data
    plain = plain.reset_coords(drop=True)
    if "prompt" in plain.dims:
        plain = plain.assign_coords(prompt=np.arange(plain.sizes["prompt"]) + 1)
    # A matrix keeps its columns side by side.
    for name in [name for name, values in plain.data_vars.items() if "column" in values.dims]:
        wide = plain[name].to_dataset("column")
        plain = plain.drop_vars(name).merge(wide.rename({column: f"{name}_{column}" for column in wide}))
    alike: dict[tuple, list[str]] = {}
    for name, values in plain.data_vars.items():
        alike.setdefault(values.dims, []).append(name)
    tables = [
        plain[names].to_dataframe(dim_order=list(dims)).dropna(how="all").reset_index()
        if dims
        else pd.DataFrame({name: [plain[name].item()] for name in names})
        for dims, names in alike.items()
    ]
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True).convert_dtypes()


def fingerprint(table: pd.DataFrame) -> str:
    """Summarise a table: its number of rows, and of every column of measured numbers the count and three statistics."""
    columns = [name for name in table if pd.api.types.is_float_dtype(table[name])]
    return "; ".join([f"{len(table)} rows", *(f"{name}: {_sizes(table[name])}" for name in columns)])


def _sizes(column: pd.Series) -> str:
    """Format mean, root mean square and ramp: a changed number moves the first two, a moved one the third."""
    numbers = column.to_numpy(dtype=float, na_value=np.nan)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return "none"
    scale = float(np.sqrt(np.mean(numbers**2)))
    ramp = float(np.mean(numbers * (1 + np.arange(numbers.size) / numbers.size)))
    # Five digits of the scale: a mean of nearly nothing is not printed as digits that the processor chose.
    digits = 4 - int(np.floor(np.log10(scale))) if scale > 0 else 0
    # Adding 0 makes a rounded -0.0 the 0 that it is.
    mean, scale, ramp = (round(float(size), digits) + 0.0 for size in (numbers.mean(), scale, ramp))
    return f"{numbers.size} numbers, mean {mean:.7g}, rms {scale:.7g}, ramp {ramp:.7g}"


def csv_text(table: pd.DataFrame, name: str, provenance: str) -> str:
    """Write a table as CSV with its origin."""
    head = "".join(f"# {part}\n" for part in [f"figure {name}", *provenance.split(" · ")])
    return head + table.to_csv(index=False, float_format="%.5g", lineterminator="\n")


def remember(prefix: str, values: Mapping[str, float | str]) -> None:
    """Store numbers for the prose of the book, each as `prefix-name`, without showing them here."""
    kind = "application/papermill.record/"
    for name, value in values.items():
        text = value if isinstance(value, str) else repr(float(value))
        record = {"scrapbook": {"name": f"{prefix}-{name}", "mime_prefix": kind}}
        display({f"{kind}text/plain": text}, raw=True, metadata=record)


def _lettered(figure: Figure, caption: str) -> Figure:
    """Insert the letters that a caption names before the titles of the first panels, in order."""
    for letter, axes in zip(re.findall(r"\([a-d]\)", caption), figure.axes, strict=False):
        axes.title.set_text(f"{letter} {axes.get_title()}".rstrip())
    return figure


def _origin(data: Data, sources: str) -> str:
    """Return the origin of data: their own note, named sources, or records of measurements."""
    if own := "" if sources else getattr(data, "attrs", {}).get("origin", ""):
        return own
    if records := [] if sources else records_of(data):
        return origin.line(*records, command=_command)
    return " · ".join(part for part in (sources, _command) if part)


def _address(figure: Figure, printed: bool) -> str:
    """Encode a picture as a data URL; for print, small and at a printer's resolution."""
    kind, picture = "svg+xml", b"" if printed else style.save_svg(figure)
    if printed:
        image = Image.open(io.BytesIO(style.save_png(figure, _PRINT_DPI))).convert("RGBA")
        page = Image.new("RGBA", image.size, style.colour("page"))
        page.alpha_composite(image)
        buffer = io.BytesIO()
        # By default, a palette has the colours of large areas alone, and a small mark takes one of those.
        page.convert("RGB").quantize(_PRINT_COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1).save(
            buffer, format="png", optimize=True
        )
        kind, picture = "png", buffer.getvalue()
    elif len(picture) > LARGEST_SVG:
        kind, picture = "png", style.save_png(figure)
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"
