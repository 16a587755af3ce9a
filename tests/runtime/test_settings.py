from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from junctor.model.errors import InputError
from junctor.model.options import ComputeOptions
from junctor.planning.budget import FOREVER
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.settings import compute_of, load_settings, resources_of
from junctor_kernels.cpu.compilation import is_quiet


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WORKERS", "MEMORY", "SCHEDULER", "PREFECT", "CONFIG", "QUIET"):
        monkeypatch.delenv(f"JUNCTOR_{name}", raising=False)


def resources() -> dict[str, Any]:
    """What is set, but for the cache, which tests are without."""
    return {name: value for name, value in load_settings().items() if name != "cache"}


def test_nothing_said() -> None:
    assert resources() == {}
    assert resources_of({}, {}) == Resources()


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "junctor.toml").write_text('workers = 3\nmemory = "1KiB"\nprefect = false\n')
    monkeypatch.setenv("JUNCTOR_WORKERS", "5")
    assert resources() == {"workers": 5, "memory": 1024, "prefect": False}


@pytest.mark.parametrize(("text", "expected"), [("off", 0), ("2MiB", 2 << 20), ("", None)])
def test_texts_of_the_environment(text: str, expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUNCTOR_CACHE", text)
    monkeypatch.setenv("JUNCTOR_INSECURE_SCHEDULER", "true")
    monkeypatch.setenv("JUNCTOR_DEVICE", "cpu")
    settings = load_settings()
    assert settings.get("cache") == expected
    assert (settings["insecure_scheduler"], settings["device"]) == (True, "cpu")


@pytest.mark.parametrize(
    ("name", "text"),
    [("WORKERS", "-1"), ("MEMORY", "lots"), ("DEVICE", "tpu"), ("PREFECT", "perhaps"), ("DISK", "200")],
)
def test_bad_texts_of_the_environment_are_refused(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"JUNCTOR_{name}", text)
    with pytest.raises(InputError, match=f"'{name.lower()}' \\(JUNCTOR_{name}\\): found '{text}'"):
        load_settings()


def test_the_file_may_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.toml").write_text("workers = 2")
    monkeypatch.setenv("JUNCTOR_CONFIG", str(tmp_path / "other.toml"))
    assert resources() == {"workers": 2}
    monkeypatch.setenv("JUNCTOR_CONFIG", "")
    assert resources() == {}
    monkeypatch.setenv("JUNCTOR_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(InputError, match=r"nowhere\.toml: cannot read"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker = 2", r"junctor\.toml: unknown setting 'worker', did you mean 'workers'"),
        ("nope = 2", r"unknown setting 'nope'\. Known are workers, "),
        ("workers = -1", r"'workers' \(junctor\.toml\): found -1"),
        ('memory = "lots"', r"'memory' \(junctor\.toml\): found 'lots'"),
        ("workers = true", r"'workers' \(junctor\.toml\): found True: expected a number$"),
        ("memory = true", r"'memory' \(junctor\.toml\): found True: expected a number$"),
        ("time_limit = 0.5", r"'time_limit' \(junctor\.toml\): found 0\.5"),
        ('time_limit = "soon"', r"'time_limit' .*: found 'soon': found the time 'soon', expected a number and a unit"),
        ("disk = false", r"'disk' \(junctor\.toml\): found False: expected a number$"),
        ("workers = ", r"junctor\.toml: cannot read"),
        ("workers = " + "[" * 5000, r"junctor\.toml: cannot read"),
    ],
)
def test_bad_settings_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "junctor.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_settings()


def test_a_slip_in_the_environment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUNCTOR_SOMETHING_ELSE", "1")
    load_settings()
    monkeypatch.setenv("JUNCTOR_WORKER", "1")
    with pytest.raises(InputError, match="JUNCTOR_WORKER: unknown setting 'worker', did you mean 'workers'"):
        load_settings()


def test_options_go_before_settings(tmp_path: Path) -> None:
    (tmp_path / "junctor.toml").write_text('workers = 3\nmemory = "1KiB"\nspill = "there"\ninsecure_scheduler = true\n')
    settings = load_settings()
    assert compute_of(settings, {}) == ComputeOptions(1024, spill_dir=Path("there"))
    options = {"threads": 2, "device": "cpu", "disk": 1000, "workers": 0}
    compute = ComputeOptions(1024, 2, "cpu", spill_dir=Path("there"), spill_bytes=1000)
    assert compute_of(settings, options) == compute
    assert resources_of(settings, options) == Resources(0, None, True, compute)
    assert resources_of(settings, {"scheduler": "tls://host:1"}).workers == 3


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ('"2d"', 172_800.0), ('"none"', FOREVER)])
def test_a_row_has_its_time(text: str, seconds: float, tmp_path: Path) -> None:
    (tmp_path / "junctor.toml").write_text(f"time_limit = {text}")
    settings = load_settings()
    assert compute_of(settings, {}) == ComputeOptions(time_limit=seconds)
    assert compute_of(settings, {"time_limit": 600.0}).time_limit == 600


def test_silence_reaches_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Set and deleted, so that what settings leave there goes with the test.
    monkeypatch.setenv("JUNCTOR_QUIET", "")
    (tmp_path / "junctor.toml").write_text("quiet = true\n")
    assert not is_quiet()
    assert resources() == {"quiet": True}
    assert is_quiet()
