"""Store the numbers of executed notebooks on models whose weights do not ship, in `data/decoders.csv`.

    python book/recorded.py results/gemma3-270m/*.ipynb

The folder of a notebook is the model's alias. Pages and claims take the numbers from there where a notebook is not run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from named_numbers import remembered

from companion.tables import decoders


def main(arguments: list[str] | None = None) -> None:
    """Read notebooks, and write their numbers into the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", type=Path, nargs="+", help="executed notebooks, as results/MODEL/depth.ipynb")
    for file in (chosen := parser.parse_args(arguments).notebooks):
        if file.parent.name not in decoders.MODELS or not file.is_file():
            known = ", ".join(decoders.MODELS)
            parser.error(f"{file} is no executed notebook of a model of the table; its folder is one of {known}")
    rows = [row for file in chosen for row in decoders.rows_of(file.parent.name, file.stem, remembered(file))]
    print(f"{len(rows)} effects of {len(chosen)} notebooks; the table has {decoders.replace_rows(rows)}")


if __name__ == "__main__":
    main()
