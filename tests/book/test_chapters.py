"""The chapters of the book: one shape for all, verdicts in the words of the claims, commands that exist, with times."""

from __future__ import annotations

import importlib
import re
from itertools import pairwise

import chapters
import claims
import pytest
import verdicts
import yaml
from executed import executed
from papermill.inspection import inspect_notebook

import coupling_lib
from coupling_lib import paths

BOOK = paths.ROOT / "book"
SECTIONS = ["What the paper reports", "What was measured here", "Doubts", "Run it"]
PARTS = ["The idea", "Evidence", "Doubts", "Your model", "Machinery"]
SHARED = r"```{{include}} ../results/book/{}-{}.md\n```"

each_chapter = pytest.mark.parametrize("chapter", list(chapters.CHAPTERS))


def text_of(chapter: str) -> str:
    return (BOOK / f"{chapter}.md").read_text(encoding="utf-8")


def toc() -> list[dict]:
    return yaml.safe_load((paths.ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]


# -- the order of the book


def test_the_contents_go_from_the_idea_over_evidence_and_doubts_to_the_reader_s_model_and_the_machinery():
    assert [part["caption"] for part in toc()] == PARTS
    listed = [chapter["file"].removeprefix("book/") for part in toc()[1:3] for chapter in part["chapters"]]
    assert [name for name in listed if name != "variants"] == list(chapters.CHAPTERS)


def test_every_notebook_has_its_chapter():
    assert set(chapters.CHAPTERS) == {path.stem for path in (paths.ROOT / "notebooks").glob("*.ipynb")}


# -- the shape of a chapter


@each_chapter
def test_a_chapter_says_what_was_found_before_anything_else_and_then_has_the_same_sections(chapter):
    text = text_of(chapter)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    title, box, *_ = re.split(r"\n\n(?=:::|## )", text)
    assert title.startswith("# ") and "\n" not in title
    said = re.match(r":::\{admonition\} (.+)\n:class: finding\n\n(.+?)\n\n```\{include\}", box, re.DOTALL)
    assert said and 20 < len(said[1]) < 120
    assert box.rstrip().endswith(":::") and re.search(SHARED.format("verdicts", chapter), box)
    # Sentences, with what is filled in taken for one word: two to five, and none of its numbers typed.
    plain = re.sub(r"\{glue:text\}`[^`]+`", "NUMBER", said[2])
    assert 2 <= len(re.findall(r"[.:](?:\s|$)", plain)) <= 7 and plain.count("NUMBER") >= 3


@each_chapter
def test_a_chapter_shows_a_figure_under_what_was_measured_names_nothing_twice_and_ends_in_its_commands(chapter):
    parts = re.split(r"^## .+$", text_of(chapter), flags=re.MULTILINE)
    assert re.search(r"```\{glue\} [\w-]+\n:doc:", parts[2])
    assert parts[3].strip() and re.match(rf"\s*{SHARED.format('run', chapter)}", parts[4])
    headings = re.findall(r"^#{2,3} (.+)$", text_of(chapter), re.MULTILINE)
    assert len(headings) == len(set(headings)) >= 4
    # Commands stand in one place for all chapters.
    assert ".venv/bin" not in text_of(chapter)


# -- what is generated


def test_a_chapter_has_the_verdicts_of_its_claims_in_the_words_of_the_page_of_claims(monkeypatch):
    known = [
        {"claim": "A", "notebook": "depth", "models": ["smollm2-135m", "nano-neox"], "test": [{}]},
        {"claim": "B", "notebook": "nulls", "chapters": ["depth"], "models": ["suite"], "test": [{"scope": "paper"}]},
        {"claim": "C", "notebook": "tokens", "models": ["nano-neox"], "test": [{}]},
    ]
    given = {"A": {"decoder": verdicts.REPRODUCED, "trained": verdicts.REPRODUCED, "paper": verdicts.MISSING},
             "B": {"decoder": None, "trained": verdicts.MISSING, "paper": verdicts.CONTRADICTED}}  # fmt: skip
    monkeypatch.setattr(claims, "judge_all", lambda results: [(claim, []) for claim in known])
    monkeypatch.setattr(claims, "verdict_at", lambda claim, found, place: given[claim["claim"]][place])
    lines = chapters.verdicts_part("depth").splitlines()
    assert lines[:2] == [
        "- Claim 1, *A*: **reproduced** in a public decoder and in models trained here",
        "- Claim 2, *B*: **contradicted** in the paper's models",
    ]
    assert chapters.verdicts_part("vision").startswith("The paper claims nothing")


def test_every_claim_is_in_a_chapter():
    for claim in claims.read_claims():
        assert {claim["notebook"], *claim.get("chapters", [])} <= set(chapters.CHAPTERS)


def test_the_time_of_a_chapter_is_that_of_its_run_and_not_run_is_said(tmp_path):
    executed(tmp_path / "smollm2-135m" / "depth.ipynb", seconds=61.0)
    part = chapters.run_part("depth", tmp_path)
    assert (
        "This chapter, for SmolLM2-135M-Instruct (Q4_1). **Time: 60 s** on" in part and "ship with the project" in part
    )
    assert "[nano-neox](../results/nano-neox/depth.ipynb) (not run here)" in part
    assert part.count("**Time: not run here.**") == len(chapters.CHAPTERS["depth"].further) == 1


@each_chapter
def test_a_chapter_s_commands_stand_alone_in_blocks_and_name_parameters_that_the_notebook_has(chapter, tmp_path):
    part = chapters.run_part(chapter, tmp_path)
    blocks = re.findall(r"```bash\n(.*?)```", part, re.DOTALL)
    assert len(blocks) == 1 + len(chapters.CHAPTERS[chapter].further)
    known = inspect_notebook(str(paths.ROOT / "notebooks" / f"{chapter}.ipynb"))
    for block in blocks:
        (command,) = block.splitlines()
        assert command.startswith(".venv/bin/")
        if "papermill" in command:
            assert f"notebooks/{chapter}.ipynb out.ipynb" in command
            assert {name for flag, name in pairwise(command.split()) if flag == "-p"} <= set(known)


@each_chapter
def test_a_chapter_names_functions_that_exist(chapter):
    for name in chapters.CHAPTERS[chapter].measured:
        room, _, function = chapters.in_full(name).rpartition(".")
        home = coupling_lib if room == "coupling_lib" else importlib.import_module(room)
        assert callable(getattr(home, function))
    for name in chapters.CHAPTERS[chapter].drawn:
        room, function = name.split(".")
        assert callable(getattr(importlib.import_module(f"companion.figures.{room}"), function))
