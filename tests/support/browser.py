"""The built book and a tab of headless Chromium that it is read in, from the disk, as without a network."""

import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import complete
import pytest
import yaml
from playwright.sync_api import Browser, Page, expect, sync_playwright

from coupling_lib.paths import ROOT

HTML = ROOT / "_build" / "html"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
NARROW = {"width": 360, "height": 800}
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Chromium reports what it does for itself, apart from the page, unless it is told not to.
_QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
_LOCAL = ("file:", "data:", "blob:")
# What the browser says of a picture that was still being read when its page was left.
_LEFT_BEHIND = "net::ERR_ABORTED"
# Milliseconds of any wait: where other programs had both cores, a page of a notebook took 50 seconds to load.
_LONGEST = 180_000
expect.set_options(timeout=_LONGEST)


def book_pages() -> list[Path]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [HTML / f"{page}.html" for page in complete.pages(toc)]


def pages_by_kind() -> tuple[list[Path], list[Path]]:
    """The first page of each kind, and the others: of one notebook for several models, and of the library's rooms."""
    first: dict[str, Path] = {}
    for page in book_pages():
        place = page.relative_to(HTML)
        kind = page.stem if place.parts[0] == "results" else "room" if page.parent.name == "api" else str(place)
        first.setdefault(kind, page)
    return [*first.values()], [page for page in book_pages() if page not in first.values()]


def first_of(rows: Iterable[Any], number: int = 1) -> list[Any]:
    """Return parameters of which the first stand for all in `make test`; the others are left to the thorough tests."""
    given = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=[pytest.mark.thorough] * (at >= number)) for at, row in enumerate(given)]


@contextmanager
def launched() -> Generator[Browser]:
    program = next(filter(None, map(shutil.which, _CHROMIUM)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_QUIET, timeout=_LONGEST)
        try:
            yield browser
        finally:
            browser.close()


def new_tab(browser: Browser, **options: Any) -> Page:
    """A tab that is given time."""
    page = browser.new_page(**options)
    page.set_default_timeout(_LONGEST)
    return page


def watched(browser: Browser) -> Page:
    """A tab that keeps in `wrong` what goes wrong in it."""
    page = new_tab(browser)
    page.wrong = []
    page.on("console", lambda m: page.wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("requestfailed", lambda r: page.wrong.append(f"failed: {r.url}") if r.failure != _LEFT_BEHIND else None)
    page.on("request", lambda r: page.wrong.append(f"left: {r.url}") if not r.url.startswith(_LOCAL) else None)
    return page


def renewed(page: Page) -> None:
    """Make a tab as if it were new."""
    page.evaluate("try { localStorage.clear(); sessionStorage.clear() } catch {}")
    page.goto("about:blank")
    page.emulate_media(media="null", color_scheme="light", reduced_motion="null")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.mouse.move(0, 0)
    page.wrong.clear()


@contextmanager
def requested(tab: Page) -> Generator[list[str]]:
    """Note the addresses that a tab asks for."""
    asked: list[str] = []

    def note(request) -> None:
        asked.append(request.url)

    tab.on("request", note)
    try:
        yield asked
    finally:
        tab.remove_listener("request", note)


def address(tab: Page) -> str:
    """The address as the page has it; playwright hears of one that a script changes a moment later."""
    return tab.evaluate("location.href")


def show(tab: Page, page: Path) -> None:
    tab.goto(page.as_uri(), wait_until="load")
    # Mathematics is set after the page has loaded, in fonts that are read then.
    tab.evaluate("Promise.resolve(window.MathJax?.startup.promise).then(() => document.fonts.ready).then(() => true)")
