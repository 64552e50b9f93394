"""A sweep's configuration file, checked before anything runs: each mistake is one line.

`read` turns the file into a plan: every job with all that it needs, under a name made of what it measures. Snakemake
works through the plan and never sees the file, so that no value of it reaches a shell.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

import coupling_lib as cl
from companion.notebook.parameters import RULES
from companion.training.drop_path import measure_drop_path
from coupling_lib import paths
from coupling_lib.errors import CouplingError, is_whole, shown
from coupling_lib.measures import nulls
from coupling_lib.measures.precision import measure_triplets
from coupling_lib.models import registry, sources
from coupling_lib.store import digest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
MEASURES = {
    measure.__name__.removeprefix("measure_"): measure
    for measure in (
        *(cl.measure_depth, cl.measure_tokens, cl.measure_trajectories, cl.measure_spectra, cl.measure_dynamics),
        *(cl.measure_perturbation, measure_triplets, cl.measure_relations, measure_drop_path),
        *(nulls.measure_nulls, nulls.measure_decisive),
    )
}
# Ten lists of each other ten times over are a short file, and would be ten thousand million letters.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80
# Named by the workflow itself for each figure.
_OF_THE_SWEEP = ("model", "precision", "revision", "prompts", "memory", "seed")


class ConfigError(CouplingError):
    """A configuration file asks for something that no sweep can do."""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"\w[\w.-]{0,60}", value, re.ASCII))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 0 < value < math.inf


def _list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(accepts, value))


def _mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


# Name: what an error says is expected, whether a value will do, and the default.
KEYS: dict[str, tuple[str, Callable[[Any], bool], Any]] = {
    "name": ("letters, digits, '.', '_' and '-'", _is_name, None),
    "models": ("a list of aliases, Hugging Face ids or folders", lambda v: isinstance(v, list) and bool(v), None),
    "precisions": (f"a list of {RULES['precision'].expected}", _list_of(RULES["precision"].accepts), ["float32"]),
    "untrained": ("a list of true or false", _list_of(lambda v: isinstance(v, bool)), [False]),
    "prompts": (RULES["prompts"].expected, RULES["prompts"].accepts, 12),
    "seed": (RULES["seed"].expected, RULES["seed"].accepts, 0),
    "shards": ("a whole number from 1", lambda v: is_whole(v, 1), 1),
    "until": ("a number above 0, the half width to reach, as 0.01", _is_positive, None),
    "of": ("the name of a variable", lambda v: isinstance(v, str) and bool(v.strip()), None),
    "measures": ("measures with their settings, as depth: {ks: [10]}", lambda v: _mapping(v) and bool(v), None),
    "figures": ("notebooks with their parameters, as depth: {k: 10}", _mapping, {}),
    "book": ("true or false", lambda v: isinstance(v, bool), False),
    "gpu": ("a whole number of cards for each job, from 0", lambda v: is_whole(v, 0), 0),
    "memory": (RULES["memory"].expected, RULES["memory"].accepts, ""),
    "flops": ("floating-point operations a second, above 0", _is_positive, None),
}
REQUIRED = ("models", "measures")


def read(file: str | Path) -> dict[str, Any]:
    """Read a configuration file into the plan of a sweep."""
    file = Path(file)
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file {str(file)!r} cannot be read ({error}); give a configuration file") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        message = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file.name} is no YAML that a sweep reads ({message}); see workflow/config.yaml") from None
    try:
        return plan(given, file.stem)
    except CouplingError as error:
        raise ConfigError(f"{file.name}: {error}") from None


def plan(given: Any, name: str) -> dict[str, Any]:
    """Check the settings, and create a job for every model, network, precision and measure."""
    chosen = _checked(given)
    name = chosen["name"] or name
    if not _is_name(name):
        raise ConfigError(f"the sweep would be called {name!r}; give it a name: of {KEYS['name'][0]}")
    if chosen["until"] is not None and chosen["shards"] > 1:
        raise ConfigError(f"until is {chosen['until']!r}, which needs all prompts in one job, and shards is "
                          f"{chosen['shards']}; leave one of them out")  # fmt: skip
    if chosen["until"] is not None and not chosen["of"] and set(chosen["measures"]) != {"depth"}:
        raise ConfigError("until needs to know of which number, and only depth has a main one; give of the name of a "
                          "variable")  # fmt: skip
    models = [_model(number, entry) for number, entry in enumerate(chosen["models"])]
    names = _names(models)
    measures = {m: _settings(m, settings, models) for m, settings in chosen["measures"].items()}
    shared = {key: chosen[key] for key in ("prompts", "seed", "until", "of", "gpu", "memory")}
    jobs, figures = {}, {}
    for model, called in zip(models, names, strict=True):
        for precision in chosen["precisions"]:
            needed = []
            for untrained in chosen["untrained"]:
                for measure, settings in measures.items():
                    job = {**model, "precision": precision, "untrained": untrained, "measure": measure}
                    job |= {"version": MEASURES[measure].version, "settings": settings, **shared}
                    label = _label(job)
                    jobs[label] = job | {"weights": called, "shards": chosen["shards"]}
                    needed.append(label)
            for notebook, parameters in chosen["figures"].items():
                filled = _figure(notebook, parameters, {**model, "precision": precision, **shared})
                figure = {"notebook": notebook, "parameters": filled, "needs": needed}
                figures[f"{notebook}-{called}-{precision}"] = figure
    _refuse_unasked(measures, chosen["figures"])
    folder, weights = str(paths.RESULTS / "sweeps" / name), dict(zip(names, models, strict=True))
    return {"name": name, "root": folder, "store": str(paths.RESULTS), "weights": weights, "jobs": jobs,
            "figures": figures, "book": chosen["book"], "flops": chosen["flops"]}  # fmt: skip


def _checked(given: Any) -> dict[str, Any]:
    """Check names and types of the whole file."""
    if not _mapping(given):
        raise ConfigError(f"it holds {_seen(given)}; names with values were expected, see workflow/config.yaml")
    for name in given:
        if name not in KEYS:
            raise ConfigError(f"{shown(name)} is unknown{_near(name, KEYS)}; a sweep takes {', '.join(KEYS)}")
    for name in REQUIRED:
        if given.get(name) is None:
            raise ConfigError(f"{name} is missing; give {KEYS[name][0]}")
    chosen = {name: default if given.get(name) is None else given[name] for name, (*_, default) in KEYS.items()}
    for name, (expected, accepts, _) in KEYS.items():
        if given.get(name) is not None and not accepts(given[name]):
            raise ConfigError(f"{name} is {_seen(given[name])}; expected {expected}")
    return chosen


def _model(number: int, entry: Any) -> dict[str, Any]:
    """Check one model: a name, or a name with a revision."""
    where = f"models[{number}]"
    given = entry if _mapping(entry) else {"model": entry}
    if set(given) - {"model", "revision"} or not isinstance(given.get("model"), str) or not given["model"].strip():
        raise ConfigError(f"{where} is {_seen(entry)}; expected a name, or {{model: name, revision: step1000}}")
    name, revision = given["model"], given.get("revision")
    if not (Path(name) / "config.json").is_file():  # a folder's name may end in a space
        name = name.strip()
    if revision is not None and not (RULES["revision"].accepts(revision) and revision.strip()):
        raise ConfigError(f"{where} has revision {_seen(revision)}; expected {RULES['revision'].expected}")
    entry = registry.lookup(name)
    if entry is None and (Path(name) / "config.json").is_file():
        return {"model": str(Path(name).resolve()), "revision": revision}
    if entry is None and not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(/[\w.-]+\.gguf)?", name, re.ASCII):
        near = registry.suggest(name)
        advice = f"did you mean {near[0]!r}?" if near else "see data/models.csv for the aliases"
        raise ConfigError(
            f"{where} is {shown(name)}: no alias, no Hugging Face id and no folder with a config.json; {advice}"
        )
    if entry is not None and entry.embedded and revision is not None:
        try:
            sources.locate(name, revision)  # needs no network; says which steps there are
        except CouplingError as error:
            raise ConfigError(f"{where}: {error}") from None
    return {"model": name, "revision": revision}


def _settings(measure: str, settings: Any, models: list[dict[str, Any]]) -> dict[str, Any]:
    """Check a measure's settings against its arguments."""
    if measure not in MEASURES:
        raise ConfigError(f"measures has {shown(measure)}{_near(measure, MEASURES)}; choose from {', '.join(MEASURES)}")
    settings = {} if settings is None else settings
    if not _mapping(settings):
        raise ConfigError(f"measures: {measure} is {_seen(settings)}; expected settings such as {{k: 10}}, or nothing")
    taken = dict(list(inspect.signature(MEASURES[measure]).parameters.items())[2:])
    for name, value in settings.items():
        if name not in taken:
            raise ConfigError(f"measures: {measure} has no setting {shown(name)}{_near(name, taken)}; it takes "
                              f"{', '.join(taken)}")  # fmt: skip
        if expected := _unlike(value, taken[name]):
            raise ConfigError(f"measures: {measure} has {name} = {_seen(value)}; expected {expected}")
    for name, parameter in taken.items():
        if parameter.default is parameter.empty and name not in settings:
            raise ConfigError(f"measures: {measure} needs {name}; add it to its settings")
    ks = settings.get("ks", [settings["k"]] if "k" in settings else [])
    for k in ks:
        widths = {m["model"]: entry.width for m in models if (entry := registry.lookup(m["model"])) and entry.width}
        if k < 1 or (narrow := [m for m, width in widths.items() if k > width]):
            bound = f"{widths[narrow[0]]}, the width of {narrow[0]}" if k >= 1 else "the width of the model"
            raise ConfigError(f"measures: {measure} has k = {k}; expected a whole number from 1 to {bound}")
    return settings


def _unlike(value: Any, parameter: inspect.Parameter) -> str:
    """Describe the kind expected of a value that differs from an argument's default; empty where it does not."""
    kind, default = inspect.formatannotation(parameter.annotation), parameter.default
    if "Sequence" in kind or isinstance(default, tuple | list):
        whole = "int" in kind
        fits = _list_of(is_whole if whole else _is_number)(value) or (value == [] and default == ())
        return "" if fits else f"a list of {'whole ' * whole}numbers"
    if value is None and "None" in kind:
        return ""
    if kind.startswith("bool"):
        return "" if isinstance(value, bool) else "true or false"
    if kind.startswith("int"):
        return "" if is_whole(value) else "a whole number"
    if kind.startswith("float"):
        return "" if _is_number(value) else "a number"
    return "" if isinstance(value, str) else "a text"


def _figure(notebook: str, parameters: Any, of_the_sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a notebook's parameters, and check those that were given."""
    known = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    if notebook not in known:
        raise ConfigError(f"figures has {shown(notebook)}{_near(notebook, known)}; choose from {', '.join(known)}")
    parameters = {} if parameters is None else parameters
    if not _mapping(parameters):
        raise ConfigError(f"figures: {notebook} is {_seen(parameters)}; expected parameters such as {{k: 10}}")
    cell = _twin(notebook).partition('# %% tags=["parameters"')[2].partition("# %%")[0]
    declared = re.findall(r"^(\w+): \w+ = ", cell, re.MULTILINE)
    for name, value in parameters.items():
        if name in _OF_THE_SWEEP or name not in declared:
            free = [other for other in declared if other not in _OF_THE_SWEEP]
            raise ConfigError(f"figures: {notebook} has no {shown(name)} of its own{_near(name, free)}; it takes "
                              f"{', '.join(free)}")  # fmt: skip
        if not RULES[name].accepts(value):
            raise ConfigError(f"figures: {notebook} has {name} = {_seen(value)}; expected {RULES[name].expected}")
    usual = {name: value for name, value in of_the_sweep.items() if name in declared and value not in (None, "")}
    return {name: value for name, value in usual.items() if name in _OF_THE_SWEEP} | dict(parameters)


def _refuse_unasked(measures: Mapping[str, Mapping[str, Any]], notebooks: Collection[str]) -> None:
    """Refuse figures that would not find the measurements in the store, and repeat all of them."""
    # What products alone give, without the traceless part, is another measurement than what every notebook asks for.
    for measure, settings in measures.items():
        asking = [notebook for notebook in notebooks if f"measure_{measure}" in _twin(notebook)]
        if settings.get("formed") is False and asking:
            raise ConfigError(f"measures: {measure} has formed = {_seen(settings['formed'])}, and notebook {asking[0]} "
                              "of figures asks for formed ones; leave one of them out")  # fmt: skip


def _twin(notebook: str) -> str:
    return (NOTEBOOKS / f"{notebook}.py").read_text(encoding="utf-8")


def _label(job: Mapping[str, Any]) -> str:
    """Return the name of a job from its settings; jobs of different settings have different names."""
    state = "untrained" if job["untrained"] else "trained"
    # The number of cards changes no result.
    identity = {name: value for name, value in job.items() if name not in ("gpu", "memory")}
    return f"{_slug(job)}-{job['precision']}-{state}-{job['measure']}-{digest(identity)[:8]}"


def _slug(model: Mapping[str, Any]) -> str:
    """Return a file name for a model and its revision that no command line takes for an option."""
    text = "-".join(filter(None, (model["model"], model["revision"])))
    plain = re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip(".-")
    plain = plain[-60:].lstrip(".-") or "model"  # the cut may leave a dash in front
    return plain if plain == text else f"{plain}-{digest({'of': text})[:6]}"


def _names(models: list[dict[str, Any]]) -> list[str]:
    """Return names of models that distinguish each from the others: a revision `b` of `a` from a model `a-b`."""
    slugs, known = [_slug(model) for model in models], {digest(model): _slug(model) for model in models}
    shared = {slug for slug in slugs if list(known.values()).count(slug) > 1}
    return [f"{s}-{digest(model)[:8]}" if s in shared else s for s, model in zip(slugs, models, strict=True)]


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""


def _seen(value: Any) -> str:
    return f"{_SHORT.repr(value)[:80]} ({type(value).__name__})"
