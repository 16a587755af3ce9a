"""The shape of the source: names, places of files, and imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.files import ROOT
from junctor.model.strategies import Strategy

SOURCES = {
    "junctor": ROOT / "pipeline" / "junctor",
    "junctor_flows": ROOT / "flows" / "junctor_flows",
    "junctor_kernels": ROOT / "kernels" / "junctor_kernels",
}


# Parameters of a public function; a group of options is one.
MOST_PARAMETERS = 12


def modules() -> Iterator[Path]:
    for folder in SOURCES.values():
        yield from folder.rglob("*.py")


def test_no_two_public_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert len(homes) > 100
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def wide(source: str) -> list[str]:
    """The public functions, methods and constructors of a source that have more parameters than that."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name[0] != "_" or node.name == "__init__"
        ):
            told = node.args
            named = filter(None, (*told.posonlyargs, *told.args, *told.kwonlyargs, told.vararg, told.kwarg))
            if len({each.arg for each in named} - {"self", "cls"}) > MOST_PARAMETERS:
                found.append(node.name)
    return found


def test_public_functions_have_few_parameters() -> None:
    names = ", ".join(f"p{i}" for i in range(MOST_PARAMETERS))
    assert wide(f"class A:\n    def f(self, {names}, *, one, **more): ...\n    def g(self, {names}): ...") == ["f"]
    assert wide(f"def f({names}): ...\ndef g({names}, **more): ...\ndef _h({names}, **more): ...") == ["g"]
    found = {str(path.relative_to(ROOT)): wide(path.read_text()) for path in modules()}
    assert len(found) > 400
    assert not {path: names for path, names in found.items() if names}


def test_modules_lie_in_the_folders_of_their_layers() -> None:
    files = {path.name for path in SOURCES["junctor"].iterdir() if path.is_file()}
    modules = ("api", "drawing", "draws", "generate", "sklearn")
    assert files == {"__init__.py", "py.typed", *(f"{name}.py" for name in modules)}
    assert {path.name for path in SOURCES["junctor_kernels"].iterdir() if path.is_file()} <= {"__init__.py", "py.typed"}


def test_folders_of_tests_are_those_of_the_source() -> None:
    folders = {path.parent.name for folder in SOURCES.values() for path in folder.rglob("*.py")}
    tests = {path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")}
    assert tests <= {folder.removeprefix("junctor_") for folder in folders} | {"api", "benchmarks", "routes"}


def test_names_of_test_modules_are_unique() -> None:
    names = [path.name for path in ROOT.glob("tests/**/test_*.py")]
    assert len(names) == len(set(names))


def test_no_modules_import_each_other_in_a_circle() -> None:
    grimp = pytest.importorskip("grimp", reason="comes with import-linter")
    graph = grimp.build_graph(*SOURCES, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # Whoever imports nothing that is left is in no circle.
    while free := {module for module, others in imports.items() if not others & imports.keys()}:
        imports = {module: others for module, others in imports.items() if module not in free}
    # Nor is whom nobody that is left imports.
    while free := imports.keys() - set().union(*imports.values()):
        imports = {module: others for module, others in imports.items() if module not in free}
    assert not imports, sorted(imports)


def imported(tree: ast.AST) -> set[str]:
    """Return the modules that a source imports, anywhere, and what could be modules of packages."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_ways_are_taken_where_they_are_chosen_and_run() -> None:
    root = SOURCES["junctor"]
    trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in root.rglob("*.py")}
    users = {name for name, tree in trees.items() if "junctor.strategies.registry.way" in imported(tree)}
    assert users == {f"engine/{name}.py" for name in ("choose", "engine", "run")}


WAYS = [strategy.value.replace("-", "_") for strategy in Strategy]


def faults_of_way(source: str, name: str) -> set[str]:
    """Return what the module of a strategy must not know: other ones, the engine and, where it answers, prices."""
    tree = ast.parse(source)
    others = {f"junctor.strategies.{module}" for module in WAYS if module != name}
    found = {each for each in imported(tree) if each in others or f"{each}.".startswith("junctor.engine.")}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "answer":
            words = {getattr(each, "attr", getattr(each, "id", "")).lower() for each in ast.walk(node)}
            found |= words & {"offer", "price", "choose"}
    return found


def test_no_strategy_knows_another_one_or_chooses() -> None:
    bad = "class A:\n    def answer(self):\n        from junctor.engine import choose\n        return x.offer(1), Price"
    assert faults_of_way(bad, "a") == {"junctor.engine", "junctor.engine.choose", "offer", "price"}
    assert faults_of_way("from junctor.strategies import entries", "a") == {"junctor.strategies.entries"}
    for module in WAYS:
        source = (SOURCES["junctor"] / "strategies" / f"{module}.py").read_text()
        assert "def answer" in source
        assert not faults_of_way(source, module), module


# What only who places the parts of runs compares: the words of a device, and counts of what there is.
DEVICES = {"cpu", "gpu"}
COUNTS = {"workers", "processes", "gpus", "cores", "count_gpus", "has_gpu", "has_extra"}


def decisions(source: str) -> list[str]:
    """Return the comparisons and choices of a source that are about devices, or about how many processes there are."""
    found = []
    for node in ast.walk(ast.parse(source)):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            operands = node.values
        elif isinstance(node, ast.Call):
            operands = [node.func, *(node.args if ast.unparse(node.func) in ("min", "max") else [])]
        names = {getattr(each, "attr", getattr(each, "id", None)) for each in operands}
        if names & COUNTS or DEVICES & {each.value for each in operands if isinstance(each, ast.Constant)}:
            found.append(ast.unparse(node))
    return found


def test_one_module_places_the_parts_of_runs() -> None:
    runs = {path.name: path.read_text() for path in (SOURCES["junctor"] / "runs").rglob("*.py")}
    assert len(decisions(runs.pop("placement.py"))) > 10
    # Whoever does what was decided shares files among the processes, and asks for the largest of them.
    assert {name: found for name, source in runs.items() if (found := decisions(source))} == {
        "run.py": ["placed.workers > 1", "workers > 1"],
        "estimate.py": ["min(threads.rows, workers)"],
    }
