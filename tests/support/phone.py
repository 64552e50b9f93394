"""Figures on a phone: how large their words are drawn, whether panels stand below each other and all fits."""

import re
from pathlib import Path

import panels
from playwright.sync_api import Page

_WIDE = re.compile(r'viewBox="0 0 ([\d.]+) ')
# Of each figure: whether it is cut into panels and scrolls sideways, the pictures that are seen, and how wide each is.
_DRAWN = """scheme => {
  const folded = [...document.querySelectorAll("article details.sd-dropdown:not([open])")];
  folded.forEach(e => { e.open = true; });
  const drawn = [
    ...document.querySelectorAll("figure.tbc-figure[id]:not(.cx-static *):not([hidden])")
  ].map(figure => [
    figure.id, "windows" in figure.dataset,
    [...figure.querySelectorAll(".tbc-view, .tbc-panel")]
      .some(box => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1),
    [...figure.querySelectorAll(`img.only-${scheme}`)].filter(image => image.checkVisibility())
      .map(image => [image.getAttribute("src"), image.getBoundingClientRect().width]),
  ]);
  folded.forEach(e => { e.open = false; });
  return drawn;
}"""


# Controls of the explorer and of its kin that have no name or are too low for a finger, and names given twice.
_UNCOMFORTABLE = """() => {
  const controls = [...document.querySelectorAll(".cx :is(button, input, select, textarea)")];
  const nameless = c => !(c.getAttribute("aria-label") || c.labels?.[0]?.textContent || c.textContent).trim();
  const wrong = c => nameless(c) || c.getBoundingClientRect().height < 36;
  const ids = [...document.querySelectorAll("[id^=cx-]")].map(e => e.id);
  const wide = document.documentElement.scrollWidth > innerWidth ? ["scrolls sideways"] : [];
  if (!controls.length) wide.push("no controls");
  return [...wide, ...controls.filter(c => c.checkVisibility() && wrong(c)).map(c => c.outerHTML.slice(0, 80)),
    ...ids.filter((id, at) => ids.indexOf(id) < at)];
}"""


def uncomfortable(tab: Page) -> list[str]:
    """Return what of a page of controls does not suit a phone."""
    return tab.evaluate(_UNCOMFORTABLE)


def faults(tab: Page, page: Path, scheme: str) -> dict[str, str]:
    """Figures that are not shown, scroll sideways or are not cut into panels, and those with words below ten pixels."""
    found = {}
    for anchor, cut, scrolls, drawn in tab.evaluate(_DRAWN, scheme):
        if scrolls:
            found[anchor] = "scrolls sideways"
        if not drawn or (len(drawn) > 1 and not cut):
            found[anchor] = f"{len(drawn)} pictures are shown"
        for source, width in drawn:
            file = (page.parent / source.partition("#")[0]).resolve()
            drawing = file.read_text(encoding="utf-8") if file.suffix == ".svg" else ""
            points, wide = (panels.smallest(drawing), float(_WIDE.search(drawing)[1])) if drawing else (8.0, 540.0)
            if (size := points * width / wide) < 9.95:
                found[anchor] = f"words of {size:.2f} pixels"
    return found
