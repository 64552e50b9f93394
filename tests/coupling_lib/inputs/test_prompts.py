import json
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from refusals import refused

from companion.notebook.choices import chosen_prompts, chosen_questions
from coupling_lib.errors import CouplingError, ParameterError
from coupling_lib.inputs.prompts import BENCHMARKS, PARIS, Prompt, add_chain_of_thought, count_steps, load_prompts

LONG = "word " * 31 + "<unk>"
STYLES = [f"{name}-style" for name in BENCHMARKS]


@pytest.fixture(autouse=True)
def no_folder_of_the_machine(monkeypatch):
    monkeypatch.delenv("COUPLING_PROMPTS", raising=False)


def written(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """A local folder with three prompts in each benchmark's file, and a page of WikiText."""
    for name in BENCHMARKS:
        row = {"dataset": name, "source": "x"}
        rows = (row | {"id": f"{name}-{i}", "prompt": f" {name} asks {i}? "} for i in range(3))
        written(tmp_path / f"{name}.jsonl", *rows)
    paragraphs = [LONG, "–" + " long" * 127, "A caption of few words", "long " * 128 + "end"]
    page = " \n = A title = \n \n " + " \n = = Part = = \n ".join(paragraphs) + f" \n = {LONG} = \n"
    (tmp_path / "test.txt").write_text(page, encoding="utf-8")
    return tmp_path


def test_embedded_prompts_are_unique_and_match_their_style():
    prompts = load_prompts()
    assert Counter(prompt.dataset for prompt in prompts) == dict.fromkeys(STYLES, 20)
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == 120
    for prompt in prompts:
        assert prompt.text == " ".join(prompt.text.split()) and prompt.text.count(" ") >= 5
        open_ended = prompt.dataset in {"hellaswag-style", "winogrande-style"}
        assert prompt.text.endswith("?") != open_ended, prompt
        assert not (open_ended and prompt.text.endswith((".", "!"))), prompt
    assert load_prompts("paris") == [Prompt("paris", "paris", PARIS)]
    assert PARIS == "What is the capital of France? The capital is"


def test_selections_are_balanced_and_follow_the_seed():
    for n in [1, 7, 50, 120]:
        prompts = load_prompts(n=n)
        counts = Counter(prompt.dataset for prompt in prompts)
        assert len(set(prompts)) == n
        assert max(counts.values()) - min(counts.get(style, 0) for style in STYLES) <= 1
        assert load_prompts(n=120)[:n] == prompts
    assert load_prompts(n=12, seed=3) == load_prompts(n=12, seed=3)
    assert load_prompts(n=12, seed=3) != load_prompts(n=12, seed=4)
    # Written down, so that a selection means the same prompts on every machine and in every version.
    assert [prompt.id for prompt in load_prompts(n=3)] == ["arc-style-13", "gsm8k-style-13", "hellaswag-style-11"]
    for n in (0, -1, 121, 2.0, True, "6"):
        refused(ParameterError, "from 1 to 120", load_prompts, n=n)


def test_benchmarks_and_wikitext_are_read_from_a_folder(folder, tmp_path_factory):
    for name in BENCHMARKS:
        wanted = [Prompt(f"{name}-{i}", name, f"{name} asks {i}?") for i in range(3)]
        assert load_prompts(name, folder=folder) == wanted
    assert len(load_prompts("benchmarks", folder=folder)) == 18
    chosen = load_prompts("benchmarks", n=12, folder=folder)
    assert Counter(prompt.dataset for prompt in chosen) == dict.fromkeys(BENCHMARKS, 2)
    above = tmp_path_factory.mktemp("above")
    for below, name in (("prompts", "arc"), ("wikitext2", "wikitext2")):
        (above / below).symlink_to(folder)
        assert load_prompts(name, folder=above) == load_prompts(name, folder=folder)
    pages = {"wikitext2-4": LONG, "wikitext2-6": "–" + " long" * 127}
    wanted = [Prompt(name, "wikitext2", text) for name, text in pages.items()]
    assert load_prompts("wikitext2", folder=folder) == wanted
    (folder / "test.txt").write_text(" = Only = \n a heading \n")
    refused(ParameterError, "no paragraph of 32 to 128 words", load_prompts, "wikitext2", folder=folder)


def test_a_notebook_finds_prompts_through_the_environment(folder, monkeypatch):
    by_path = chosen_prompts(f"{folder / 'gsm8k.jsonl'}:2", 0)
    monkeypatch.setenv("COUPLING_PROMPTS", str(folder))
    assert chosen_prompts("gsm8k:2", 0) == by_path
    assert len(load_prompts("benchmarks")) == 18 and len(load_prompts("wikitext2")) == 2
    (folder / "mmlu.jsonl").unlink()
    missing = r"no mmlu\.jsonl; expected it there or under prompts/ .*COUPLING_PROMPTS"
    refused(ParameterError, missing, load_prompts, "mmlu")
    monkeypatch.setenv("COUPLING_PROMPTS", str(folder / "elsewhere"))
    assert load_prompts("gsm8k", n=2, folder=folder) == by_path  # an argument goes before the environment


def test_steps_are_calculations_or_lines_of_arithmetic_problems():
    counted = {prompt.id: prompt.steps for prompt in load_prompts() if prompt.steps is not None}
    assert set(counted) == {f"gsm8k-style-{number:02d}" for number in range(1, 21)}
    assert set(counted.values()) == {2, 3, 4}
    # 4 * 12, - 31, - 5;  13 * 3, 4 * 2, their sum, 50 - it;  6 - 1, kilograms to grams, / 250
    assert [counted[f"gsm8k-style-{number}"] for number in ("01", "09", "20")] == [3, 4, 3]
    marked = "He has 3*4 = <<3*4=12>>12, and 12-5 = <<12-5=7>>7 are left.\n#### 7"
    solutions = (marked, "Half is 4.\n\nTwice that is 8.\nSo 8.\n#### 8", "#### 8", "eight")
    assert list(map(count_steps, solutions)) == [2, 3, None, None]


def test_steps_and_ratings_are_read_from_files(tmp_path):
    file = written(
        tmp_path / "rated.jsonl",
        {"question": "Why?", "answer": "1+1 = <<1+1=2>>2\n#### 2"},  # the form in which GSM8K is published
        {"prompt": "How?", "steps": 5, "answer": "<<>>#### 1", "rating": -1.5, "difficulty": 3},
        {"prompt": "Who?", "answer": "nobody", "difficulty": 2},
        {"prompt": "When?", "answer": ["now"], "difficulty": "easy"},
    )
    known = [("Why?", 1, None), ("How?", 5, -1.5), ("Who?", None, 2.0), ("When?", None, None)]
    assert [(prompt.text, prompt.steps, prompt.rating) for prompt in load_prompts(file)] == known
    assert len(chosen_questions(file, 0)) == 3
    table = 'id,question,rating,steps,difficulty\na,"One, two\nthree?",0.25,3,\nb,Four?,,,0.5\nc,Five?,,,hard\n'
    (tmp_path / "rated.csv").write_text(table)
    wanted = [("a", "rated", "One, two\nthree?", 3, 0.25), ("b", "rated", "Four?", None, 0.5), ("c", "rated", "Five?")]
    assert load_prompts(str(tmp_path / "rated.csv")) == [Prompt(*values) for values in wanted]
    for plain in load_prompts(file):
        text = plain.text + " Let's think step by step."
        assert add_chain_of_thought(plain) == replace(plain, id=plain.id + "+cot", text=text)


def test_prompt_files_need_only_a_text(tmp_path):
    lines = '{"prompt": "O\u2028ne"}\n\n{"prompt": "Two", "id": 7, "dataset": "d"}\n'
    (tmp_path / "mine.jsonl").write_text(lines, encoding="utf-8")
    assert load_prompts(tmp_path / "mine.jsonl") == [Prompt("mine-1", "mine", "O\u2028ne"), Prompt("7", "d", "Two")]
    (tmp_path / "lines.txt").write_text("Première ligne \n\n  third\n", encoding="utf-8")
    wanted = [Prompt("lines-1", "lines", "Première ligne"), Prompt("lines-3", "lines", "third")]
    assert load_prompts(str(tmp_path / "lines.txt")) == wanted


def test_prompts_that_cannot_be_fetched_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = r"'arc' cannot be fetched .* set COUPLING_PROMPTS .* install the `datasets`"
    refused(CouplingError, message, load_prompts, "arc")
    unreachable = Mock(side_effect=ConnectionError("no route\nto host"))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=unreachable))
    refused(CouplingError, r"cannot be fetched as openai/gsm8k \(no route\)", load_prompts, "gsm8k")


def test_hub_rows_become_prompts(monkeypatch):
    table = {"sentence": ["The cup fell off the tray because the _ was wet.", "He saw _ ."]}
    table |= {"text": ["", " = T = ", f" {LONG} "], "question": ["Why? ", "How?"], "answer": ["<<1+1=2>>\n#### 2", "?"]}
    load_dataset = Mock(return_value=table)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    texts = ["The cup fell off the tray because the", "He saw"]
    wanted = [Prompt(f"winogrande-validation-{i}", "winogrande", text) for i, text in enumerate(texts)]
    assert load_prompts("winogrande") == wanted
    assert [prompt.text for prompt in load_prompts("wikitext2")] == [LONG]
    wanted = [Prompt("gsm8k-test-0", "gsm8k", "Why?", steps=1), Prompt("gsm8k-test-1", "gsm8k", "How?")]
    assert load_prompts("gsm8k") == wanted
    assert load_dataset.call_args_list == [
        call("allenai/winogrande", "winogrande_xl", split="validation"),
        call("Salesforce/wikitext", "wikitext-2-raw-v1", split="test"),
        call("openai/gsm8k", "main", split="test"),
    ]


JSON_LINES = ["{", '{"text": "x"}', '"x"', '{"prompt": 3}', '{"prompt": "  "}', "[1]"]
WRONG = ('"steps": "2"', '"rating": "high"', '"rating": true', '"rating": NaN')
JSON_LINES += [f'{{"prompt": "x", {wrong}}}' for wrong in WRONG]
LINES = {
    "jsonl": ('{"prompt": "a"}', JSON_LINES, "JSON such as"),
    "csv": ("prompt,rating", ["fine,high", "fine,nan", ",1", "two and, 3"], "a table with a column prompt or question"),
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_that_is_no_prompt_is_refused(tmp_path, kind):
    head, lines, expected = LINES[kind]
    for line in lines:
        (tmp_path / f"bad.{kind}").write_text(f"{head}\n{line}\n")
        message = rf"line 2 of .*bad\.{kind}' is no prompt; expected {expected}"
        refused(ParameterError, message, load_prompts, tmp_path / f"bad.{kind}")


def test_repeated_prompt_ids_are_refused(tmp_path):
    rows = [{"prompt": "a", "id": 1}, {"prompt": "b", "id": "1", "dataset": "d"}, {"prompt": "c", "id": None}]
    found = [(prompt.dataset, prompt.id) for prompt in load_prompts(written(tmp_path / "mine.jsonl", *rows))]
    assert found == [("mine", "1"), ("d", "1"), ("mine", "mine-3")]
    file = written(tmp_path / "mine.jsonl", *rows, {"prompt": "d", "id": 1})
    refused(ParameterError, "holds 2 prompts with the id '1'; expected an id of its own for each", load_prompts, file)
