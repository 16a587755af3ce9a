"""Entries in the user's cache directory: whole or absent, checked, bounded, and never needed."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.model.errors import InputError
from junctor.runtime import cache as module
from junctor.runtime.cache import DEFAULT_BYTES, Cache, cache_bytes, user_cache
from junctor.runtime.settings import load_settings

CONTENT = b"an order of three variables"


def _only(cache: Cache) -> Path:
    (entry,) = cache.entries()
    return entry.path


def test_an_entry_comes_back_under_its_own_key_only(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "kept")
    assert cache.read("order", "a", bytes) is None
    cache.write("order", "a", CONTENT)
    assert cache.read("order", "a", bytes) == CONTENT
    assert cache.read("order", "b", bytes) is None
    assert cache.read("network", "a", bytes) is None
    cache.write("order", "a", b"another")
    assert cache.read("order", "a", bytes) == b"another"
    assert [(entry.kind, entry.bytes) for entry in cache.entries()] == [("order", _only(cache).stat().st_size)]
    assert cache.clear() == 1
    assert cache.entries() == []


@given(st.data())
def test_changed_bytes_are_no_entry(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    cache = Cache(tmp_path_factory.mktemp("kept"))
    cache.write("order", "a", CONTENT)
    path = _only(cache)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.one_of(
            st.binary(max_size=80),
            st.just(whole[:at]),
            st.builds(lambda more: whole + more, st.binary(min_size=1, max_size=9)),
            st.integers(1, 255).map(lambda bits: whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :]),
        )
    )
    path.write_bytes(damaged)
    found = cache.read("order", "a", bytes)
    assert found == (CONTENT if damaged == whole else None)
    # The next writer mends it.
    cache.write("order", "a", CONTENT)
    assert cache.read("order", "a", bytes) == CONTENT


def test_damage_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    cache.write("order", "a", CONTENT)
    _only(cache).write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "junctor"):
        assert cache.read("order", "a", bytes) is cache.read("order", "a", bytes) is None
    assert len(caplog.records) == 1
    assert "passed over" in caplog.text


def test_strange_content_is_no_entry(tmp_path: Path) -> None:
    def refuse(content: bytes) -> bytes:
        raise ValueError("strange")

    cache = Cache(tmp_path)
    cache.write("order", "a", CONTENT)
    assert cache.read("order", "a", refuse) is None


def test_an_entry_under_another_name_is_no_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.write("order", "a", CONTENT)
    first = _only(cache)
    cache.write("order", "b", b"another")
    (second,) = {entry.path for entry in cache.entries()} - {first}
    os.replace(first, second)
    assert cache.read("order", "b", bytes) is None


def test_what_is_no_file_is_no_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for key in ("pipe", "folder", "link"):
        cache.write("order", key, CONTENT)
    pipe, folder, link = (entry.path for entry in cache.entries())
    for path in (pipe, folder, link):
        path.unlink()
    # A process that opened it would wait for ever.
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to("nowhere")
    assert [cache.read("order", key, bytes) for key in ("pipe", "folder", "link")] == [None] * 3
    assert cache.entries() == []
    (folder / "mine").touch()
    with pytest.raises(OSError, match=folder.name):
        cache.clear()
    (folder / "mine").unlink()
    cache.clear()
    assert list(tmp_path.iterdir()) == []


def test_another_version_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.write("order", "a", CONTENT)
    monkeypatch.setattr(module, "_here", lambda: "a version to come")
    assert cache.read("order", "a", bytes) is None


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=5_000)
    for i in range(4):
        cache.write("order", str(i), bytes(1_000))
        newest = max((entry.path for entry in cache.entries()), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (i, i))
    # Used now, so that the second one is the longest unused.
    assert cache.read("order", "0", bytes) is not None
    cache.write("order", "4", bytes(1_000))
    assert sum(entry.bytes for entry in cache.entries()) <= 5_000
    assert cache.read("order", "1", bytes) is None
    assert all(cache.read("order", key, bytes) is not None for key in "0234")
    # One that would push out most others stays outside.
    cache.write("order", "large", bytes(2_000))
    assert cache.read("order", "large", bytes) is None


def test_strays_of_killed_processes_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    old, young = (tmp_path / f".order-{name}.kept.{name}.tmp" for name in ("old", "young"))
    for stray in (old, young):
        stray.write_bytes(b"")
    os.utime(old, (0, 0))
    cache.write("order", "a", CONTENT)
    assert not old.exists()
    assert young.exists()
    cache.clear()
    assert not young.exists()


def _write_and_read(folder: str, process: int) -> int:
    cache = Cache(Path(folder), limit=60_000)
    whole = 0
    for i in range(150):
        key = str(i % 7)
        content = key.encode() * 4_000
        cache.write("order", key, content)
        found = cache.read("order", key, bytes)
        assert found in (None, content)
        whole += found is not None
        if i % 50 == process:
            cache.clear()
    return whole


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3) as processes:
        found = list(processes.map(_write_and_read, [str(tmp_path)] * 3, range(3)))
    assert min(found) > 0
    assert sum(entry.bytes for entry in Cache(tmp_path).entries()) <= 3 * 60_000
    assert not list(tmp_path.glob(".*"))


def _no_right(*arguments: object, **named: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("trouble", ["read-only", "no right", "full", "a file"])
def test_without_a_usable_folder_nothing_is_kept(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "kept"
    if trouble == "full":
        monkeypatch.setattr(Path, "write_bytes", refuse)
    elif trouble == "a file":
        folder.write_text("not a folder")
    elif trouble == "no right":
        # Of a folder in one that may not be entered, as the home of another user. Root may enter all.
        monkeypatch.setattr(Path, "stat", _no_right)
        monkeypatch.setattr(Path, "mkdir", _no_right)
    else:
        # Root may write anywhere but under `/proc`.
        folder = Path("/proc/kept")
    cache = Cache(folder)
    with caplog.at_level(logging.WARNING, "junctor"):
        for key in "ab":
            cache.write("order", key, CONTENT)
            assert cache.read("order", key, bytes) is None
    assert len(caplog.records) == 1
    assert "nothing is kept for the next run" in caplog.text
    assert cache.entries() == []


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/none")
    monkeypatch.setattr(Path, "expanduser", refuse)
    # Not as if it were a matter of `JUNCTOR_CACHE`.
    with pytest.raises(InputError, match=r"^~/\.cache: .* no home directory of this user: let HOME name a folder"):
        user_cache()


def test_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache().limit == 0
    user_cache().write("order", "a", CONTENT)
    assert not (tmp_path / "junctor").exists()
    monkeypatch.delenv("JUNCTOR_CACHE")
    assert user_cache().limit == DEFAULT_BYTES
    assert user_cache().folder == tmp_path / "junctor" / "kept"
    (tmp_path / "junctor.toml").write_text('cache = "2GiB"')
    # Set first, so that the change of `load_settings` is taken back at the end.
    monkeypatch.setenv("JUNCTOR_CACHE", "")
    assert load_settings()["cache"] == user_cache().limit == 2 << 30
    monkeypatch.setenv("JUNCTOR_CACHE", "off")
    assert load_settings()["cache"] == user_cache().limit == 0
    monkeypatch.setenv("JUNCTOR_CACHE", "lots")
    with pytest.raises(InputError, match="JUNCTOR_CACHE: found the size 'lots'"):
        user_cache()
    with pytest.raises(InputError, match=r"'cache'.*found 'lots'"):
        load_settings()
    with pytest.raises(InputError, match="or off"):
        cache_bytes("lots")


def test_a_folder_in_the_place_of_an_entry_keeps_no_other_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    cache.write("order", "a", CONTENT)
    path = _only(cache)
    path.unlink()
    (path / "inner").mkdir(parents=True)
    cache.write("order", "a", CONTENT)
    cache.write("order", "b", CONTENT)
    assert (cache.read("order", "a", bytes), cache.read("order", "b", bytes)) == (None, CONTENT)
    assert not caplog.records
