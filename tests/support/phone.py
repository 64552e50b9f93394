"""Figures on a phone: how large their words are drawn, whether panels stand below each other and all fits."""

from __future__ import annotations

from pathlib import Path

import panels
from playwright.sync_api import Page

# Of each figure: whether it is cut into panels and scrolls sideways, the pictures that are seen, and how wide each is.
_DRAWN = """scheme => [...document.querySelectorAll("figure.tbc-figure[id]:not(.cx-static *)")].map(figure => [
  figure.id, "windows" in figure.dataset,
  [...figure.querySelectorAll(".tbc-view, .tbc-panel")]
    .some(box => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1),
  [...figure.querySelectorAll(`img.only-${scheme}`)].filter(image => image.checkVisibility())
    .map(image => [image.getAttribute("src"), image.getBoundingClientRect().width]),
])"""


def faults(tab: Page, page: Path, scheme: str) -> dict[str, str]:
    """Figures that are not shown, scroll sideways or are not cut into panels, and those with words below ten pixels."""
    found = {}
    for anchor, cut, scrolls, drawn in tab.evaluate(_DRAWN, scheme):
        if scrolls:
            found[anchor] = "scrolls sideways"
        if not drawn or (len(drawn) > 1 and not cut):
            found[anchor] = f"{len(drawn)} pictures are shown"
        for source, width in drawn:
            file = (page.parent / source).resolve()
            points = panels.smallest(file.read_text(encoding="utf-8")) if file.suffix == ".svg" else 8.0
            if (size := points * 4 / 3 * width / 720) < 9.95:
                found[anchor] = f"words of {size:.2f} pixels"
    return found
