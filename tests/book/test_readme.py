"""The README's example prints what stands under it."""

import re

from coupling_lib.paths import ROOT


def test_the_example_prints_what_stands_under_it(capsys):
    code, output = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(code, {})
    assert capsys.readouterr().out == output
