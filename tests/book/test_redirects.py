"""Old addresses of pages: each leads to a page that is there, in the settings and in the built book."""

from pathlib import Path

import complete
import pytest
import yaml
from browser import HTML

from coupling_lib import paths

LISTED = complete.listed()
SETTINGS = yaml.safe_load((paths.ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
REDIRECTS = SETTINGS["redirects"]


def test_every_redirect_leads_to_an_existing_page():
    assert REDIRECTS
    for old, new in REDIRECTS.items():
        page = new.partition("#")[0]
        assert old not in LISTED and (Path(old).parent / page).with_suffix("").as_posix() in LISTED
    template = (paths.ROOT / SETTINGS["redirect_html_template_file"]).read_text(encoding="utf-8")
    assert template.count("${to_uri}") == 2 and "<title>" in template and 'lang="en"' in template


@pytest.mark.browser
def test_every_redirect_is_built():
    for old, new in REDIRECTS.items():
        stub = HTML / f"{old}.html"
        assert f'href="{new}"' in stub.read_text(encoding="utf-8") and (stub.parent / new.partition("#")[0]).is_file()
