"""Reduces the size of the built book: files that no reader loads are removed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The bundle that `_config.yml` names as mathjax_path, and its fonts. No page asks for an extension; one that did would
# fail the test that opens it.
MATHJAX = ("tex-chtml.js", "output/chtml")
# Files that no current browser loads: maps for debugging, fonts in an old format, sources of translations.
UNREAD = (".map", ".ttf", ".po", ".mo")
# Alphabets of MathJax in which nothing of the book is written.
UNWRITTEN = ("Fraktur", "SansSerif", "Script", "Typewriter")
# The script of icons draws those of brands.
UNDRAWN = "fa-brands-400.woff2"
BLANKS = re.compile(r"(<(pre|script|style|textarea)\b.*?</\2>)", re.DOTALL)
# The colour of code, or of one kind of word in it and nothing but its colour.
COLOUR = re.compile(r"\.highlight (?:\.(\w+) )?\{ (?:background: [^;]+; )?color: ([^;}]+?) \}")
# One icon in the script of Font Awesome: its name, size, other names, place in the font, and outline.
ICON = re.compile(r'"?([\w-]+)"?:\[\d+,\d+,(\[[^\]]*\]),"[0-9a-f]+",(?:"[^"]*"|\[[^\]]*\])\],?')


def without_outputs(folder: Path) -> int:
    """Remove outputs and execution records from notebooks: pages show them, and a downloaded notebook is run."""
    found = sorted(folder.rglob("*.ipynb"))
    for path in found:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for held in (notebook, *notebook["cells"]):
            for name in ("papermill", "execution"):
                held["metadata"].pop(name, None)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        path.write_text(json.dumps(notebook, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    return len(found)


def one_bundle(mathjax: Path, kept: tuple[str, ...] = MATHJAX) -> None:
    """Remove all files of MathJax but those kept."""
    places = [mathjax / name for name in kept]
    for path in sorted(mathjax.rglob("*"), reverse=True):
        if any(path.is_relative_to(place) or place.is_relative_to(path) for place in places):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def used_icons(site: Path) -> int:
    """Remove the icons that no page and no other script names from the script of icons."""
    (script,) = site.rglob("fontawesome.js")
    naming = [path for kind in ("*.html", "*.js") for path in site.rglob(kind) if path != script]
    used = {name for path in naming for name in re.findall(r"\bfa-([a-z0-9-]+)", path.read_text(encoding="utf-8"))}
    kept = 0

    def keep(icon: re.Match[str]) -> str:
        nonlocal kept
        wanted = used & {icon[1], *re.findall(r'"([\w-]+)"', icon[2])}
        kept += bool(wanted)
        return icon[0] if wanted else ""

    script.write_text(ICON.sub(keep, script.read_text(encoding="utf-8")), encoding="utf-8")
    return kept


def plain_code(site: Path) -> list[str]:
    """Remove the markup of code words in the colour of the surrounding text, half of all, and of single dots."""
    (sheet,) = site.rglob("pygments.css")
    of_text, colours = [], {}
    for name, colour in COLOUR.findall(sheet.read_text(encoding="utf-8")):
        (colours.setdefault(name, []) if name else of_text).append(colour)
    plain = [name for name, found in colours.items() if found == of_text]
    mark = re.compile(rf'<span class="(?:{"|".join(plain)})">([^<]*)</span>')
    for path in site.rglob("*.html"):
        text = mark.sub(r"\1", path.read_text(encoding="utf-8"))
        # The colour of a dot is invisible.
        path.write_text(text.replace('<span class="o">.</span>', "."), encoding="utf-8")
    return plain


def without_blanks(page: str) -> str:
    """Remove blanks at both ends of a page's lines and empty lines, except where they are visible."""
    kept = BLANKS.split(page)
    # Of each three parts the second is kept as it is, and the third is its name.
    kept[::3] = [re.sub(r"\s*\n\s*", "\n", part) for part in kept[::3]]
    return "".join(part for at, part in enumerate(kept) if at % 3 < 2)


if __name__ == "__main__":
    site = ROOT / "_build" / "html"
    if not without_outputs(site / "_sources"):
        sys.exit("error: the book has no notebook to download")
    one_bundle(site / "_static" / "mathjax")
    if not used_icons(site):
        sys.exit("error: the script of icons is no longer written as it was; see ICON in book/slim.py")
    if "n" not in plain_code(site):
        sys.exit("error: the colours of code are no longer written as they were; see COLOUR in book/slim.py")
    for path in site.rglob("*.html"):
        path.write_text(without_blanks(path.read_text(encoding="utf-8")), encoding="utf-8")
    fonts = [path for name in UNWRITTEN for path in site.rglob(f"MathJax_{name}*.woff")]
    for path in [*fonts, *site.rglob(UNDRAWN), *(path for path in site.rglob("*") if path.suffix in UNREAD)]:
        path.unlink()
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"the book takes {size / 1e6:.0f} MB")
