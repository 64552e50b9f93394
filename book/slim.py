"""Makes the built book light: each picture once, in a file; nothing that no reader loads.

A notebook holds its pictures in its text, where base64 makes them a third longer and every page that shows one repeats
it. In the site they are files, named by their content, which a browser fetches when they are looked at.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The bundle that `_config.yml` names as mathjax_path, its fonts, and what it loads when a page asks for it.
MATHJAX = ("tex-chtml.js", "output/chtml", "input/tex")


PICTURE = re.compile(r'src="data:image/(svg\+xml|png);base64,([A-Za-z0-9+/=]{1000,})"')
VIEW = re.compile(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"')
# One icon in the script of Font Awesome: its name, size, other names, place in the font, and outline.
ICON = re.compile(r'"?([\w-]+)"?:\[\d+,\d+,(\[[^\]]*\]),"[0-9a-f]+",(?:"[^"]*"|\[[^\]]*\])\],?')


def pictures_once(site: Path) -> int:
    """Moves pictures out of the pages.

    Args:
        site: the built book.

    Returns:
        how many pictures there are, each counted once.
    """
    folder = site / "_images"
    folder.mkdir(exist_ok=True)
    names = set()
    for page in sorted(site.rglob("*.html")):
        to_folder = os.path.relpath(folder, page.parent)

        def moved(found: re.Match[str], to_folder: str = to_folder) -> str:
            picture = base64.b64decode(found[2])
            name = f"{hashlib.sha256(picture).hexdigest()[:16]}.{found[1].partition('+')[0]}"
            if name not in names:
                (folder / name).write_bytes(picture)
                names.add(name)
            # Its place is kept free until it is there.
            size = VIEW.search(picture[:2000])
            shape = f' style="aspect-ratio: {size[1].decode()} / {size[2].decode()}"' if size else ""
            return f'loading="lazy"{shape} src="{to_folder}/{name}"'

        text = page.read_text(encoding="utf-8")
        light = PICTURE.sub(moved, text)
        if light != text:
            page.write_text(light, encoding="utf-8")
    return len(names)


def without_outputs(folder: Path) -> int:
    """Empties the outputs of notebooks: a page shows them, and who downloads a notebook runs it.

    Args:
        folder: what holds the notebooks, at any depth.

    Returns:
        how many notebooks there are.
    """
    found = sorted(folder.rglob("*.ipynb"))
    for path in found:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(found)


def one_bundle(mathjax: Path, kept: tuple[str, ...] = MATHJAX) -> None:
    """Removes all files of MathJax but some.

    Args:
        mathjax: its folder.
        kept: files and folders that stay, relative to it.
    """
    places = [mathjax / name for name in kept]
    for path in sorted(mathjax.rglob("*"), reverse=True):
        if any(path == place or place in path.parents or path in place.parents for place in places):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def used_icons(site: Path) -> int:
    """Removes from the script of icons all that no page and no other script names.

    Args:
        site: the built book.

    Returns:
        how many icons stay.
    """
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


if __name__ == "__main__":
    site = ROOT / "_build" / "html"
    if not without_outputs(site / "_sources"):
        sys.exit("error: the book has no notebook to download")
    pictures_once(site)
    one_bundle(site / "_static" / "mathjax")
    if not used_icons(site):
        sys.exit("error: the script of icons is no longer written as it was; see ICON in book/slim.py")
    for source_map in site.rglob("*.map"):
        source_map.unlink()
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"the book takes {size / 1e6:.0f} MB")
