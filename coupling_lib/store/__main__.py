"""The store from a shell: `python -m coupling_lib.store list | export | prune`."""

import argparse
import sys
from collections.abc import Sequence

from coupling_lib import paths, store
from coupling_lib.errors import CouplingError, in_one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    given = _parser().parse_args(arguments)
    return in_one_line(lambda: given.run(given), "interrupted; what is in the store is whole")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m coupling_lib.store", description="Measurements kept on disk.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="{list,export,prune}")

    def command(name: str, run: object, summary: str) -> argparse.ArgumentParser:
        part = commands.add_parser(name, help=summary, description=summary)
        part.set_defaults(run=run)
        part.add_argument("--model", help="only of the model with this name")
        part.add_argument("--root", help=f"folder of all results; otherwise COUPLING_RESULTS or {paths.RESULTS}")
        return part

    shown = command("list", _list, "say what is there")
    shown.add_argument("--measure", help="only of this measure, such as depth")
    written = command("export", _export, "write measurements as a table")
    written.add_argument("target", help="file to write: .csv, .parquet or .nc")
    written.add_argument("--measure", required=True, help="which measure, such as depth")
    written.add_argument("--variables", help="names of variables, separated by commas; otherwise all")
    removed = command("prune", _prune, "remove what is of no more use; with --model alone, all of that model")
    removed.add_argument("--damaged", action="store_true", help="what was damaged or left half written")
    removed.add_argument("--outdated", action="store_true", help="what is of another version than the newest")
    removed.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    return parser


def _list(given: argparse.Namespace) -> str:
    table = store.listing(given.model, given.measure, given.root)
    if table.empty:
        return "no measurements"
    names = ["model", "revision", "precision", "untrained", "measure", "version", "settings"]
    groups = table.groupby(names, sort=True, dropna=False)
    counted = groups.agg(prompts=("path", "size"), bytes=("bytes", "sum"), made=("made", "max")).reset_index()
    return counted.to_string(index=False)


def _export(given: argparse.Namespace) -> str:
    variables = given.variables.split(",") if given.variables else None
    count = store.export(given.target, given.measure, given.model, variables, given.root)
    return f"{count} measurement{'s' if count != 1 else ''} written to {given.target}"


def _prune(given: argparse.Namespace) -> str:
    if not (given.model or given.damaged or given.outdated):
        raise CouplingError("nothing was chosen; give --damaged, --outdated or --model NAME")
    what = {"damaged": given.damaged, "outdated": given.outdated, "dry_run": given.dry_run}
    files = store.prune(given.model, root=given.root, **what)
    done = "would be removed" if given.dry_run else "removed"
    return "\n".join([*map(str, files), f"{len(files)} file{'s' if len(files) != 1 else ''} {done}"])


if __name__ == "__main__":
    sys.exit(main())
