"""The chapters of the book: one shape for all, verdicts in the words of the claims, commands that exist, with times."""

import importlib
import re
from itertools import pairwise

import chapters
import claims
import complete
import pytest
import verdicts
import yaml
from executed import executed
from papermill.inspection import inspect_notebook

from coupling_lib import paths

BOOK = paths.ROOT / "book"


def test_contents_notebooks_and_claims_have_their_chapters():
    parts = yaml.safe_load((paths.ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    assert [part["caption"] for part in parts] == ["What it is", "What we found", "Your turn", "How we know"]
    assert 1 + sum(len(part["chapters"]) for part in parts) <= 18
    assert {f"book/{page}" for page in chapters.PAGES} <= set(complete.listed())
    # What the notebook of one card writes stands on the page of models.
    assert {*chapters.CHAPTERS, "card"} == {path.stem for path in (paths.ROOT / "notebooks").glob("*.ipynb")}
    for claim in claims.read_claims():
        assert claim["notebook"] in chapters.CHAPTERS
        named = claim.get("chapters", [claim["notebook"]])
        assert all((BOOK / f"{chapters.page_of(name)}.md").is_file() for name in named)


@pytest.mark.parametrize("page", chapters.PAGES)
def test_pages_begin_with_answers_and_end_with_commands(page):
    first_screen = re.compile(
        r"# [^\n]+\?\n\n"
        r":::\{admonition\} (?P<answer>[^\n]+)\n:class: finding\n\n(?P<text>.+?)\n:::\n\n"
        r"```\{glue\} [\w-]+\n:doc: [^\n]+\n```\n\n"
        r"```\{include\} \.\./results/book/verdicts-(?P<page>\w+)\.md\n```\n\n",
        re.DOTALL,
    )
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    first = first_screen.match(text)
    assert first and first["page"] == page and 20 < len(first["answer"]) < 120
    # Two to five sentences, with what is filled in taken for one word; three numbers at most, none of them typed.
    plain = re.sub(r"\{glue:text\}`[^`]+`", "NUMBER", first["text"])
    assert 2 <= len(re.findall(r"[.:](?:\s|$)", plain)) <= 6 and 1 <= plain.count("NUMBER") <= 3
    # The number that an interval is of stands below, beside it.
    assert not re.search(r"-(low|high)[:`]", first["text"])
    *body, last = re.split(r"^## ", text, flags=re.MULTILINE)
    assert re.search(r"^\| --- |```\{glue\} ", "".join(body[1:]), re.MULTILINE)
    assert re.match(rf"Run it\n\n```\{{include\}} \.\./results/book/run-{page}\.md\n```", last)
    headings = re.findall(r"^#{2,3} (.+)$", text, re.MULTILINE)
    assert len(headings) == len(set(headings)) >= 4
    # Commands stand in one place for all chapters.
    assert ".venv/bin" not in text


def test_chapters_show_the_verdicts_of_their_claims(monkeypatch):
    known = [
        {"id": "a", "claim": "A", "notebook": "depth", "models": ["smollm2-135m", "nano-neox"], "test": [{}]},
        {"id": "b", "claim": "B", "notebook": "nulls", "chapters": ["depth"], "models": ["suite"],
         "test": [{"scope": "paper"}]},
        {"id": "c", "claim": "C", "notebook": "prompts", "models": ["nano-neox"], "test": [{}]},
    ]  # fmt: skip
    given = {"A": {"decoder": verdicts.REPRODUCED, "trained": verdicts.REPRODUCED, "paper": verdicts.MISSING},
             "B": {"decoder": None, "trained": verdicts.MISSING, "paper": verdicts.CONTRADICTED}}  # fmt: skip
    monkeypatch.setattr(claims, "judge_all", lambda results: [(claim, []) for claim in known])
    monkeypatch.setattr(claims, "verdict_at", lambda claim, found, place: given[claim["claim"]][place])
    lines = chapters.verdicts_part("depth").splitlines()
    assert lines[:2] == [
        "- {ref}`A <claim-a>`: **reproduced** in public decoders and in models trained here",
        "- {ref}`B <claim-b>`: **contradicted** in the paper's models",
    ]
    assert chapters.verdicts_part("vision").startswith("The paper has no claim about this.")


def test_chapter_reports_run_times_or_not_run(tmp_path):
    executed(tmp_path / "smollm2-135m" / "depth.ipynb", seconds=61.0)
    part = chapters.run_part("depth", tmp_path)
    assert "This chapter, for SmolLM2-135M-Instruct (Q4_1). **Time: 60 s** on" in part
    assert "[ship with the project]" in part
    assert "[nano-neox](../results/nano-neox/depth.ipynb) (not run here)" in part
    _, *others = chapters.public_decoders.NAMES.values()
    assert part.rstrip().splitlines()[-1].startswith(f"- Not measured here: {', '.join(others)}; `make decoders")
    executed(tmp_path / "gemma3-270m" / "depth.ipynb", {"depth-coupled": 0.1})
    assert "Gemma" not in chapters.run_part("depth", tmp_path)
    assert part.count("**Time: not run here.**") == len(chapters.CHAPTERS["depth"].further) == 1


@pytest.mark.parametrize("chapter", chapters.CHAPTERS)
def test_chapter_commands_parameters_and_functions_exist(chapter, tmp_path):
    blocks = re.findall(r"```bash\n(.*?)```", chapters.run_part(chapter, tmp_path), re.DOTALL)
    assert len(blocks) == 1 + len(chapters.CHAPTERS[chapter].further)
    known = inspect_notebook(str(paths.ROOT / "notebooks" / f"{chapter}.ipynb"))
    for (command,) in map(str.splitlines, blocks):
        assert command.startswith(".venv/bin/")
        if "papermill" in command:
            assert f"notebooks/{chapter}.ipynb out.ipynb" in command
            assert {name for flag, name in pairwise(command.split()) if flag == "-p"} <= set(known)
    named = [chapters.in_full(name) for name in chapters.CHAPTERS[chapter].measured]
    named += [f"companion.figures.{name}" for name in chapters.CHAPTERS[chapter].drawn]
    for room, _, function in (name.rpartition(".") for name in named):
        assert callable(getattr(importlib.import_module(room), function))
