"""Makes the built book light: nothing stays in it that no reader loads."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The bundle that `_config.yml` names as mathjax_path, its fonts, and what it loads when a page asks for it.
MATHJAX = ("tex-chtml.js", "output/chtml", "input/tex")


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


if __name__ == "__main__":
    site = ROOT / "_build" / "html"
    if not without_outputs(site / "_sources"):
        sys.exit("error: the book has no notebook to download")
    one_bundle(site / "_static" / "mathjax")
    for source_map in site.rglob("*.map"):
        source_map.unlink()
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"the book takes {size / 1e6:.0f} MB")
