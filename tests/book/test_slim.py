"""What is taken out of the built book, and what stays."""

import json

import slim

from coupling_lib import paths


def test_downloaded_notebooks_keep_cells_without_outputs(tmp_path):
    code = {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": 2}], "execution_count": 3}
    ran = {"papermill": {"duration": 1.5}, "execution": {"shell.execute_reply": "now"}}
    text = {"cell_type": "markdown", "source": ["# Tiefe → depth"], "metadata": {}}
    cells = [text, {**code, "metadata": {"a": 1} | ran}]
    path = tmp_path / "results" / "depth.ipynb"
    path.parent.mkdir()
    path.write_text(json.dumps({"cells": cells, "metadata": {"k": 1} | ran, "nbformat": 4, "nbformat_minor": 5}))
    assert slim.without_outputs(tmp_path) == 1
    left = json.loads(path.read_text(encoding="utf-8"))
    cells[1] |= {"outputs": [], "execution_count": None, "metadata": {"a": 1}}
    assert left == {"cells": cells, "metadata": {"k": 1}, "nbformat": 4, "nbformat_minor": 5}


def test_loaded_bundle_of_mathjax_stays_with_its_fonts(tmp_path):
    names = "tex-chtml.js tex-svg.js output/chtml/fonts/a.woff output/svg/b.js input/tex/e/c.js sre/d.js"
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    slim.one_bundle(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["output/chtml/fonts/a.woff", "tex-chtml.js"]
    assert not (tmp_path / "input").exists() and not (tmp_path / "output" / "svg").exists()
    assert f"mathjax_path: mathjax/{slim.MATHJAX[0]}" in (paths.ROOT / "_config.yml").read_text(encoding="utf-8")


def test_icons_used_by_any_name_are_kept(tmp_path):
    icons = 'a={"arrow-up":[384,512,[8593],"f062","M1"],bolt:[1,2,["zap"],"f0e7","M3"],sun:[1,2,[],"f1",["M4","M5"]]}'
    (tmp_path / "fontawesome.js").write_text(icons)
    (tmp_path / "a.html").write_text('<i class="fa-solid fa-arrow-up"></i>')
    (tmp_path / "b.js").write_text("'fa-zap'")
    assert slim.used_icons(tmp_path) == 2
    assert (tmp_path / "fontawesome.js").read_text() == icons.replace('sun:[1,2,[],"f1",["M4","M5"]]', "")


def test_code_loses_uncoloured_markup_and_pages_their_blanks(tmp_path):
    of_text = ".highlight { background: #fff; color: #080808 }"
    rules = [".n { color: #080808 } /* Name */", ".k { color: #7928a1 }", ".gs { color: #080808; font-weight: bold }"]
    # A mark that has the colour of the text in one theme alone stays.
    both = {"light": [*rules, ".p { color: #080808 }"], "dark": [*rules, ".p { color: #00ff00 }"]}
    sheet = [f'html[data-theme="{theme}"] {of_text}' for theme in both]
    sheet += [f'html[data-theme="{theme}"] .highlight {rule}' for theme, found in both.items() for rule in found]
    (tmp_path / "pygments.css").write_text("\n".join(sheet))
    code = '<pre>{}<span class="k">in</span> <span class="p">(</span><span class="gs">b</span></pre>'
    before = '<span class="n">x</span><span class="o">.</span>y <span class="o">=</span> '
    (tmp_path / "a.html").write_text(code.format(before))
    assert slim.plain_code(tmp_path) == ["n"]
    assert (tmp_path / "a.html").read_text() == code.format('x.y <span class="o">=</span> ')
    code = "<pre>a\n\n   b</pre>"
    page = f"<p>\n\n  A <em>b</em> \n\tc</p>  \n{code}\n  <script>\n  x</script>\n"
    assert slim.without_blanks(page) == f"<p>\nA <em>b</em>\nc</p>\n{code}\n<script>\n  x</script>\n"
