"""Sources of a model's files: resolution of an alias, a Hugging Face id or a folder."""

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from coupling_lib import paths
from coupling_lib.errors import ModelUnavailableError, ParameterError, shown
from coupling_lib.models import adapters, gguf_files, hub, packages, registry


@dataclass(frozen=True)
class Source:
    """The files of one model."""

    name: str
    folder: Path
    tokenizer: Path
    source: str
    revision: str | None = None
    hub_id: str | None = None
    started_from: int | None = None  # the seed of the first weights of a model that was trained here
    gguf: gguf_files.Contents | None = None

    @property
    def root(self) -> Path:
        """Folder to delete so that every file is fetched again: for a hub model its place in the cache."""
        return self.folder.parents[1] if self.hub_id else self.folder


def locate(name: str | Path, revision: str | None) -> Source:
    """Resolve a name: as a folder first, then as an alias or an id of the registry, then as any hub id."""
    # For a hub model, configuration and tokenizer are fetched.
    text, (folder, entry) = checked_name(name), find_local(name)
    if folder is not None and entry is None:
        adapters.refuse_folder(folder)
    if (file := gguf_files.find(name)) is not None:
        return _gguf(text, file, text, revision)
    if folder is not None and entry is None:
        return _local(folder, text, text, revision)
    # "organisation/name/file.gguf" is a file of a repository.
    of_the_hub = re.fullmatch(r"([\w-][\w.-]*/[\w.-]+)/(.+\.gguf)", text, re.IGNORECASE)
    kind = "file" if text.lower().endswith(gguf_files.SUFFIX) else "folder"
    if isinstance(name, Path) or (kind == "file" and not of_the_hub):
        raise ModelUnavailableError(f"the {kind} {text!r} does not exist; check the path")
    if folder is not None:
        if not folder.is_dir():
            elsewhere = f"{paths.in_a_checkout(folder)}: pass that folder"
            raise ModelUnavailableError(f"the embedded model {entry.alias!r} is not in {folder}; {elsewhere}")
        return _local(folder, entry.alias, f"embedded:{entry.alias}", revision)
    if of_the_hub:
        repository, file = of_the_hub.groups()
        fetched, commit = hub.fetch_file(repository, file, revision)
        return replace(_gguf(text, fetched, f"{repository}@{commit}:{file}", None), revision=revision or "main")
    if entry is not None and text.lower() in packages.PACKAGES:
        package, stored = packages.PACKAGES[entry.alias], packages.weights_of(entry.alias)
        source = f"{package.requirement}:{stored.name}"
        if stored.suffix == gguf_files.SUFFIX:
            return _gguf(entry.alias, stored, source, revision)
        return _local(stored.parent, entry.alias, f"{source} (sha256 {package.sha256[:12]})", revision)
    if entry is not None and text.lower() in packages.GGUF_FILES:
        found = packages.file_of(entry.alias, entry.hub_id)
        return _gguf(entry.alias, found, found.name, revision)
    if entry is None and "/" not in text:
        near = registry.suggest(text)
        advice = f"did you mean {near[0]!r}?" if near else "see data/models.csv for the aliases"
        raise ModelUnavailableError(f"no model is called {text!r}; {advice}")
    # The alias of a model in a package or a GGUF file names that file, its id the original on the hub.
    elsewhere = entry is not None and entry.alias in packages.PACKAGES | packages.GGUF_FILES
    hub_id, label = (entry.hub_id, text if elsewhere else entry.alias) if entry else (text, text)
    folder = hub.fetch(hub_id, revision)
    return Source(label, folder, folder, f"{hub_id}@{folder.name}", revision or "main", hub_id=hub_id)


def fetch_weights(origin: Source) -> None:
    """Fetch a model's weights if they are on the hub, and refuse a folder without."""
    if origin.gguf is None:
        hub.complete_weights(origin.folder, origin.name, origin.hub_id)


def checked_name(name: str | Path) -> str:
    """Return a name as text, and refuse one that can be no alias, id or path, before it is looked up."""
    text = str(name) if isinstance(name, str | Path) else ""
    text = text if os.path.isdir(text) else text.strip()  # a folder's name may end in a space
    if not text:
        raise ParameterError(f"model is {shown(name)}; it must be an alias, a Hugging Face id or a folder")
    if not text.isprintable() or max(len(os.fsencode(part)) for part in Path(text).parts or (text,)) > 255:
        raise ParameterError(
            f"model is {shown(text)}; a name has printable characters, at most 255 between slashes: give an alias, a "
            "Hugging Face id or a folder"
        )
    return text


def find_local(name: str | Path) -> tuple[Path | None, registry.Entry | None]:
    """Return the folder of a model that needs no network, and its registry entry unless a folder has its name."""
    folder = Path(checked_name(name))
    if folder.is_dir():
        return folder, None
    entry = registry.lookup(str(name))
    return (paths.CHECKPOINTS / entry.alias if entry is not None and entry.embedded else None), entry


def training_record(folder: Path | None) -> dict:
    """Read the record that a training recipe wrote beside a model's weights; empty if there is none."""
    if folder is None or not (record := folder / "training.json").is_file():
        return {}
    return json.loads(record.read_text(encoding="utf-8"))


def steps_of(folder: Path) -> tuple[int, ...]:
    """Return the training steps of a folder: its own is the last, `stepN/` hold others, step 0 comes from the seed."""
    stored = [int(step.parent.name.removeprefix("step")) for step in folder.glob("step*/config.json")]
    return tuple(sorted({0, training_record(folder)["steps"], *stored}))


def checkout_hint(folder: Path, revision: str) -> str:
    """Return where a training step is that an installed package leaves out, for a message; otherwise empty."""
    recorded = {f"step{point['step']}" for point in training_record(folder).get("checkpoints", [])}
    elsewhere = folder.parent == paths.CHECKPOINTS and revision in recorded
    return f"; {paths.in_a_checkout(folder / revision)}: pass that folder" if elsewhere else ""


def _gguf(name: str, file: Path, source: str, revision: str | None) -> Source:
    """Return the source of a GGUF file."""
    if revision is not None:
        raise ParameterError(f"revision is {revision!r}, and the GGUF file of {name!r} has none; leave revision out")
    contents = gguf_files.open_file(name, file)
    description = f"{source} ({contents.quantisation}, sha256 {packages.sha256(file)[:12]})"
    return Source(name, contents.folder, contents.folder, description, gguf=contents)


def _local(folder: Path, name: str, source: str, revision: str | None) -> Source:
    """Return the source of a training step in a folder."""
    record = training_record(folder)
    if not record:
        if revision is not None:
            raise ParameterError(f"revision is {revision!r}, and the folder {name!r} has none; leave revision out")
        return Source(name, folder, folder, source)
    last, steps = f"step{record['steps']}", [f"step{step}" for step in steps_of(folder)]
    revision = last if revision is None else revision
    if revision not in steps:
        message = f"{name!r} has no revision {revision!r}; choose one of {', '.join(steps)}"
        raise ModelUnavailableError(message + checkout_hint(folder, revision))
    place = folder if revision in (last, "step0") else folder / revision
    return Source(name, place, folder, source, revision, started_from=record["seed"])
