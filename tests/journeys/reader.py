"""A reader of the built book: opens it at the front, and follows links that can be seen."""

import os
import re
import subprocess
from pathlib import Path

from browser import DESKTOP, HTML, show
from playwright.sync_api import Locator, Page

from coupling_lib.paths import ROOT


class Reader:
    """One who starts on the front page; every click but that of the menu stands in the tests."""

    def __init__(self, tab: Page, size: dict[str, int] = DESKTOP) -> None:
        self.tab = tab
        tab.set_viewport_size(size)
        show(tab, HTML / "book" / "index.html")

    def follow(self, page: str, text: str) -> None:
        """Follow the first visible link to a page whose text has a word that the reader looks for."""
        link = self.tab.locator(f"a[href*='{page}']:visible").filter(has_text=re.compile(text, re.IGNORECASE))
        if not link.count():  # on a phone the menu is folded
            self.tab.locator("button.primary-toggle:visible").first.click()
        link.first.click()
        self.arrived(page)

    def arrived(self, page: str) -> None:
        """Wait until a page that was asked for is there; a click does not."""
        self.tab.wait_for_url(lambda address: page in address)

    def search(self, words: str) -> list[tuple[str, str]]:
        """Search the book; return titles and addresses of what is found, best first."""
        self.tab.locator(".search-button-field:visible, .search-button:visible").first.click()
        self.tab.keyboard.type(words)
        self.tab.keyboard.press("Enter")
        self.tab.wait_for_url("**/search.html?q=*")
        self.tab.locator("#search-results li a").first.wait_for()
        self.tab.locator(".search-summary").filter(has_text="Search finished").wait_for()
        links = self.tab.locator("#search-results li > a")
        return links.evaluate_all("found => found.map(a => [a.textContent, a.getAttribute('href')])")

    def downloaded(self, link: Locator) -> tuple[str, bytes]:
        """Click on a link to a file; return the name that the browser would save it under, and its content."""
        with self.tab.expect_download() as waiting:
            link.click()
        return waiting.value.suggested_filename, waiting.value.path().read_bytes()

    def within(self, what: Locator, screens: float = 1) -> None:
        """Assert that something is seen so many screens down."""
        assert what.first.is_visible() and self.screens(what) < screens

    def block(self, text: str) -> str:
        """Return the code block of this page that has some text."""
        return self.tab.locator("article pre").filter(has_text=text).first.inner_text()

    def screens(self, what: Locator) -> float:
        """Return how many screens down from the top something starts: below 1 it is seen at once."""
        below = "e => (e.getBoundingClientRect().top + scrollY) / innerHeight"
        return what.first.evaluate(below)


def shell(command: str, results: Path, seconds: float = 900) -> str:
    """Run a command of the book in the project's folder, and return its output; what it measures goes elsewhere."""
    environment = os.environ | {"COUPLING_RESULTS": str(results), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
