"""Compiled code on disk: used by the next process without the compiler, and done without where it cannot be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from junctor_kernels.cpu import jit as jit_module
from junctor_kernels.cpu.jit import jit, part
from junctor_kernels.cpu.sources import _file

MODULE = """
from junctor_kernels.cpu.jit import jit

@jit
def inner(values):
    total = values.max() - 8.0
    for i in range(values.size):
        total += values[i]
    return total

@jit
def outer(values, more):
    return inner(values) + more[0]
"""
INNER = """
from junctor_kernels.cpu.jit import part

@part
def inner(x):
    return 2 * x
"""
OUTER = """
from junctor_kernels.cpu.jit import loops
from junctor_kernels import extra

@loops
def outer(x):
    return extra.inner(x) + 1
"""
CALLS = """
import sys
import numpy as np
hits = lambda: sum(outer.stats.cache_hits.values())
print(outer(np.array([1.0, 8.0]), (1, 2)), hits(), "numba.np.arraymath" in sys.modules)
print(outer(np.array([1.0, 8.0], np.float32), (1, 2)), hits())
"""


def run(folder: Path, code: str) -> list[str]:
    return done(folder, code).stdout.split()


def done(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


CODE = f"from module import outer\n{CALLS}"
COUNTED = f"{CODE}from junctor_kernels.cpu.compilation import compilation\nprint(compilation.functions, "
COUNTED += "compilation.seconds > 0)"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module whose functions are compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "module.py").write_text(MODULE)
    assert run(folder, f"{CODE.rpartition('print')[0]}") == ["10.0", "0", "True"]
    # Then types of its own, which nobody compiled before.
    assert run(folder, COUNTED) == ["10.0", "1", "False", "10.0", "1", "2", "True"]
    return folder


def test_code_of_another_process_is_loaded_without_the_compiler(compiled: Path) -> None:
    assert run(compiled, COUNTED) == ["10.0", "1", "False", "10.0", "2", "0", "False"]


def test_a_process_that_compiles_says_so_and_the_next_one_does_not(compiled: Path) -> None:
    code = "import numpy as np\nfrom module import outer\nouter(np.array([1, 8]), (1, 2))"
    assert done(compiled, code).stderr.startswith("junctor: compiling for this machine, once")
    asked = done(compiled, f"{code}\nprint(outer._cache.has_any)")
    assert (asked.stdout.split(), asked.stderr) == (["True"], "")


def test_loaded_code_is_compiled_into_its_callers(compiled: Path) -> None:
    code = """
import numpy as np
from junctor_kernels.cpu.jit import jit
from module import inner, outer

@jit
def caller(values):
    return outer(values, (1, 2)) + inner(values)

print(outer(np.array([1.0, 8.0]), (1, 2)), caller(np.array([1.0, 8.0])))
print([sum(each.stats.cache_hits.values()) for each in (outer, inner, caller)])
"""
    assert run(compiled, code) == ["10.0", "19.0", "[1,", "1,", "0]"]


@pytest.mark.slow
def test_code_is_compiled_anew_where_a_file_that_is_compiled_into_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "package" / "more").mkdir(parents=True)
    extra, inner = tmp_path / "package" / "extra.py", tmp_path / "package" / "more" / "inner.py"
    extra.write_text(
        "from junctor_kernels.cpu.jit import part\nfrom junctor_kernels.more.inner import (\n    inner,\n)\n"
    )
    inner.write_text(INNER)
    (tmp_path / "module.py").write_text(OUTER)
    code = f"""
import junctor_kernels
from junctor_kernels.cpu import sources
sources._PACKAGE = {str(tmp_path / "package")!r}
junctor_kernels.__path__.append(sources._PACKAGE)
from module import outer
print(outer(1), sum(outer.stats.cache_hits.values()))
"""
    assert run(tmp_path, code) == ["3", "0"]
    assert run(tmp_path, code) == ["3", "1"]
    inner.write_text(INNER.replace("2 * x", "3 * x + 0"))
    assert run(tmp_path, code) == ["4", "0"]
    assert run(tmp_path, code) == ["4", "1"]
    # What is not compiled into it does not matter.
    (tmp_path / "package" / "other.py").write_text("")
    assert run(tmp_path, code) == ["4", "1"]


def test_a_function_is_compiled_from_all_that_its_file_imports() -> None:
    folder = Path(jit_module.__file__).parents[1]
    waiting, seen = [folder / "row_trees" / "queue.py"], set()
    while waiting:
        seen.add(path := waiting.pop())
        waiting += [Path(each) for each in _file(str(path))[1] if Path(each) not in seen]
    names = {str(path.relative_to(folder)) for path in seen}
    assert {"row_trees/lane_layout.py", "row_trees/plan.py", "orders/sparse.py", "cpu/mixing.py", "cpu/jit.py"} <= names
    assert "cpu/scores.py" not in names


@pytest.mark.slow
def test_code_without_a_file_is_compiled_anew(tmp_path: Path) -> None:
    for _ in range(2):
        assert run(tmp_path, MODULE + CALLS) == ["10.0", "0", "True", "10.0", "0"]
    assert not (tmp_path / "cache").exists()


def test_code_is_loaded_from_a_folder_that_may_only_be_read(compiled: Path) -> None:
    kept = sorted((compiled / "cache").rglob("*.nb?"))
    # Numba tries to write there first of all; the user who runs the tests may write anywhere.
    refuse = "import tempfile\ndef refuse(**_):\n    raise PermissionError\ntempfile.TemporaryFile = refuse\n"
    assert run(compiled, refuse + COUNTED) == ["10.0", "1", "False", "10.0", "2", "0", "False"]
    assert sorted((compiled / "cache").rglob("*.nb?")) == kept


@pytest.mark.slow
def test_code_of_an_earlier_version_is_compiled_anew(tmp_path: Path) -> None:
    text = "from typing import NamedTuple\nfrom junctor_kernels.cpu.jit import jit\n"
    text += "class Old(NamedTuple):\n    x: float\n@jit\ndef first(pair):\n    return pair.x\n"
    (tmp_path / "versions.py").write_text(text)
    assert run(tmp_path, "import versions; print(versions.first(versions.Old(2.0)))") == ["2.0"]
    # Its index names a class that is gone; the function is on the same line.
    (tmp_path / "versions.py").write_text(text.replace("Old", "Newer"))
    for _ in range(2):
        assert run(tmp_path, "import versions; print(versions.first(versions.Newer(3.0)))") == ["3.0"]


@pytest.mark.parametrize("suffix", ["nbi", pytest.param("nbc", marks=pytest.mark.slow)])
def test_damaged_code_is_compiled_anew(compiled: Path, suffix: str) -> None:
    for path in (compiled / "cache").rglob(f"*.{suffix}"):
        path.write_bytes(path.read_bytes()[:-9])
    assert run(compiled, CODE)[0] == "10.0"
    assert run(compiled, CODE) == ["10.0", "1", "False", "10.0", "2"]


def test_parts_are_compiled_within_their_callers(tmp_path: Path) -> None:
    text = """
from junctor_kernels.cpu.jit import inlined, jit, loops, part, part_with_arrays
import numpy as np

@inlined
def _twice(x):
    return 2 * x

@part
def _at(values, i, by):
    return _twice(values[i]) * by

@part_with_arrays
def _filled(size, x):
    values = np.empty(size)
    for i in range(size):
        values[i] = x
    return values

@loops
def total(values):
    sum = 0.0
    for i in range(values.size):
        sum += _at(values, i, 3) + _at(values, 0, 4)
    return sum

@jit
def entry(size, x):
    return total(_filled(size, x))
"""
    (tmp_path / "parts.py").write_text(text)
    code = "from parts import entry, _at, total; print(entry(5, 1.0), len(_at.overloads), len(total.overloads))"
    # One copy for both constants; the second process loads the whole and compiles nothing.
    assert run(tmp_path, code) == ["70.0", "1", "1"]
    assert run(tmp_path, code) == ["70.0", "0", "0"]
    assert {path.name.split("-")[0] for path in (tmp_path / "cache").rglob("*.nbi")} == {"parts.entry", "parts.total"}


def test_arrays_of_functions_without_references_are_refused() -> None:
    @part
    def first(values: Any) -> Any:
        return values[0], values[:1]

    @jit
    def entry(values: Any) -> Any:
        return first(values)[0]

    with pytest.raises(TypeError, match="returns an array"):
        entry(np.ones(2))
