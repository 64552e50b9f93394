"""The house: its rooms, which import one way only, and the sizes that keep it small."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from coupling_lib.paths import ROOT

# From the ground up; a room imports from itself and from rooms before it, and the library nothing of the companion.
ROOMS = [
    *("coupling_lib", "coupling_lib.datasets", "coupling_lib.metrics", "coupling_lib.svd", "coupling_lib.blocks"),
    "coupling_lib.models",
    *("coupling_lib.jacobian", "coupling_lib.inputs", "coupling_lib.store", "coupling_lib.measures"),
    *("companion.tables", "companion.figures", "companion.training", "companion.notebook"),
]
HOUSES = [ROOT / "coupling_lib", ROOT / "companion"]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for house in HOUSES
    for path in sorted(house.rglob("*.py"))
    if path != house / "__init__.py"
}


def room(module: str) -> str:
    """The folder of a module; what lies beside the folders is the ground floor."""
    house, first, *_ = module.split(".")
    return f"{house}.{first}" if (ROOT / house / first).is_dir() else house


def imports(source: str) -> set[str]:
    """Every module of the two houses that a text imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in full.values()}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(MODULES)


GRAPH = {module: imports(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


def upward(graph: dict[str, set[str]]) -> list[str]:
    """The imports that lead from a room to a later one."""
    place = {name: number for number, name in enumerate(ROOMS)}
    return [f"{a} imports {b}" for a, found in graph.items() for b in found if place[room(b)] > place[room(a)]]


def circle(graph: dict[str, set[str]]) -> set[str]:
    """The modules that are on a circle of imports, or lead to one: what is left when all that import nothing go."""
    left = {module: found - {module} for module, found in graph.items()}
    while free := {module for module, found in left.items() if not found & set(left)}:
        left = {module: found for module, found in left.items() if module not in free}
    return set(left)


def needed(module: str) -> set[Path]:
    """The files that importing a module needs, whatever of it is called: those of packages, too."""
    found, left = set(), {module}
    while left:
        one = left.pop()
        packages = {".".join(one.split(".")[:length]) for length in range(1, one.count(".") + 1)}
        found |= {one} | packages
        left |= (GRAPH.get(one, set()) | {name for name in packages if name in GRAPH}) - found
    return {MODULES.get(name) or ROOT / name.replace(".", "/") / "__init__.py" for name in found}


def test_packages_import_one_way_and_files_are_short():
    assert {room(module) for module in MODULES} == set(ROOMS)
    assert upward(GRAPH) == []
    wrong = {"coupling_lib.measures.depth": {"companion.figures.depth"}, "coupling_lib.errors": set()}
    assert upward(wrong) == ["coupling_lib.measures.depth imports companion.figures.depth"]
    assert circle(GRAPH) == set()
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}
    inside = "def f():\n    from coupling_lib.svd import krylov\n"
    annotations = "if TYPE_CHECKING:\n    from coupling_lib.metrics.coupling import mismatch\n"
    assert imports(inside + annotations) == {"coupling_lib.svd.krylov", "coupling_lib.metrics.coupling"}
    assert len(list((ROOT / "coupling_lib").glob("*.py"))) <= 7
    rooms = ("coupling_lib", "companion", "book", "workflow", "benchmarks", "tests")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    lengths = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert len(lengths) > 300 and {path: length for path, length in lengths.items() if length > 320} == {}


def core() -> list[str]:
    """The modules that CONTRIBUTING.md names for an hour's reading, in its order."""
    _, _, walk = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The core in an hour")
    rows = re.findall(r"^\| (`[^|]*\.py`) \|", walk.partition("## ")[0], re.MULTILINE)
    files = [file for row in rows for file in re.findall(r"`([\w/]+)\.py`", row)]
    return ["coupling_lib." + file.replace("/", ".") for file in files]


def lines_of(files: set[Path]) -> list[int]:
    return [len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.name != "__init__.py"]


def test_core_files_import_only_earlier_ones():
    order = core()
    assert len(order) == 24
    assert {each: GRAPH[each] - set(order[:n]) for n, each in enumerate(order)} == {each: set() for each in order}
    files = needed("coupling_lib.jacobian.tracing")
    named = {MODULES[each] for each in order if not each.startswith("coupling_lib.metrics.")}
    assert {path for path in files if path.name != "__init__.py"} == named
    lines = lines_of(files)
    assert len(lines) <= 20 and sum(lines) <= 3400
    files |= needed("coupling_lib.models.wrap")
    above = {"load", "hub", "packages", "offload", "packed", "quantised", "low_bit", "prompts", "placing", "paths"}
    assert not above & {path.stem for path in files}
    lines = lines_of(files)
    assert len(lines) <= 31 and sum(lines) <= 4620


def loaded(module: str) -> list[str]:
    """The files of all modules that one brings with it."""
    code = f"import sys, {module}; print(*(getattr(m, '__file__', None) for m in sys.modules.values()), sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_figures_load_few_files_and_no_torch():
    files = needed("companion.figures.depth")
    paths = {Path(name) for name in loaded("companion.figures.depth")}
    # All that any of its functions needs is there once it is imported.
    assert {path for path in paths if any(path.is_relative_to(house) for house in HOUSES)} == files
    assert not any("torch" in path.parts for path in paths)
    lines = lines_of(files)
    assert len(lines) <= 18 and sum(lines) <= 2400
    torch = re.compile(r"^ *(import|from) torch\b", re.MULTILINE)
    heavy = {path for path in MODULES.values() if torch.search(path.read_text(encoding="utf-8"))}
    light = {module for module in MODULES if room(module) in ("coupling_lib.datasets", "companion.figures")}
    # These draw tables of many models, or compare what the metrics themselves define.
    numbers = "generalization generalization_numbers decoder_scores rivals width nulls many_prompts readings"
    tables = {f"companion.figures.{name}" for name in (*numbers.split(), "paper_models", "vision")}
    assert {name for name in light if needed(name) & heavy} == tables
    assert not [name for name in loaded(", ".join(sorted(light - tables))) if "torch" in Path(name).parts]
    packages = {part for name in loaded("coupling_lib") for part in Path(name).parts}
    assert not {"torch", "transformers", "numpy", "pandas", "xarray", "matplotlib"} & packages
