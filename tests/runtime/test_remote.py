"""Names of objects in stores behave as paths; requests are tried again, and errors have no secrets in them."""

from __future__ import annotations

import copy
import errno
import pickle
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.model.errors import InputError, RunError
from junctor.runtime import remote
from junctor.runtime.files import clear_temporaries, written_atomically
from junctor.runtime.remote import RemotePath, local_path, location
from pyarrow import fs

SECRET_URL = "s3://AKIAEXAMPLE:s3cr3t%2Fplus@bucket/out/deep?endpoint_override=127.0.0.1:1&scheme=http&region=x"
NAMES = st.text(st.sampled_from("abc=._- %1"), min_size=1, max_size=6).filter(lambda name: name.strip(".") != "")


class Store(fs.FileSystemHandler):
    """A filesystem that fails before it works: `failures` are raised by the next requests."""

    def __init__(self, inner: fs.FileSystem) -> None:
        self.inner = inner
        self.failures: list[Exception] = []
        self.requests = 0

    def ask(self) -> fs.FileSystem:
        self.requests += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.inner

    def get_type_name(self) -> str:
        return "failing"

    def __eq__(self, other: object) -> bool:
        return self is other

    def get_file_info(self, paths: list[str]) -> Any:
        return self.ask().get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self.ask().get_file_info(selector)

    def delete_file(self, path: str) -> None:
        self.ask().delete_file(path)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.inner.create_dir(path, recursive=recursive)

    def open_input_file(self, path: str) -> Any:
        return self.ask().open_input_file(path)

    def open_input_stream(self, path: str) -> Any:
        return self.ask().open_input_stream(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self.ask().open_output_stream(path, metadata=metadata)

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError

    delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = delete_dir  # type: ignore[assignment]
    normalize_path = staticmethod(lambda path: path)


@pytest.fixture(params=["mock", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store behind every URL, in memory or in a folder; no waits between tries."""
    inner = (
        fs._MockFileSystem() if request.param == "mock" else fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    )
    handler = Store(inner)
    monkeypatch.setattr(remote, "_opened", lambda site: (fs.PyFileSystem(handler), "bucket"))
    monkeypatch.setattr(remote, "WAITS", (0.0, 0.0, 0.0))
    return handler


class _Broken:
    def read_at(self, size: int, at: int) -> bytes:
        raise OSError("AWS Error NETWORK_CONNECTION")


def path_of(name: str = "") -> RemotePath:
    path = location(f"s3://bucket/{name}")
    assert isinstance(path, RemotePath)
    return path


def test_users_write_local_paths_and_urls() -> None:
    assert location("out/run") == Path("out/run")
    assert location(Path("/a/b")) == Path("/a/b")
    assert location("odd:name") == Path("odd:name")
    assert location("./~/out") == Path("~/out").absolute()
    assert location("file:///tmp/a%20b") == Path("/tmp/a b")
    for scheme in ("s3", "gs", "abfs", "abfss", "S3"):
        assert isinstance(location(f"{scheme}://bucket/x"), RemotePath)
    path = path_of("x")
    assert location(path) is path
    assert local_path("file:///tmp") == Path("/tmp")
    with pytest.raises(InputError, match=r"found the path b'x.bif' as bytes"):
        location(b"x.bif")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ftp://host/x", "unknown kind of URL ftp://, expected s3://"),
        ("https://user:word@host/x", "unknown kind of URL https://"),
        ("s3:/bucket/x", "one slash"),
        (Path("s3://bucket/x"), "one slash"),
        ("s3:///x", "without a name"),
        ("s3://", "without a name"),
        ("file://host/x", "another machine"),
        ("s3://key:sec/ret@bucket/x", "cut: write / as %2F"),
        ("s3://bucket/a#b", "write it as %23"),
        ("s3://bucket/a\tb", "write it as %09"),
        ("s3://bucket/a\n", "a line break in it"),
        ("s3://key:word@bucket//a", "^s3://bucket//a: a key with an empty"),
        ("s3://bucket/a//", "^s3://bucket/a//: a key with an empty"),
        ("s3://bucket//", "^s3://bucket//: a key with an empty"),
        ("s3://bucket/a%2F%2Fb", "^s3://bucket/a//b: a key with an empty"),
        ("s3://bucket/a/./b", "'.' or '..' part is not read or written: leave that part out"),
        ("gs://bucket/a/../b", "'.' or '..' part is not read or written: leave that part out"),
    ],
)
def test_other_urls_are_refused_without_their_secrets(text: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        location(text)
    assert "\n" not in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("word@", "sec", "key:"))


def test_local_places_are_not_in_a_store() -> None:
    with pytest.raises(InputError, match="s3://bucket/x: expected a local path"):
        local_path("s3://key:secret@bucket/x")


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_names_are_those_of_pathlib(parts: list[str]) -> None:
    pure, path = PurePosixPath(*parts), path_of()
    for part in parts:
        path = path / part
    assert (path.name, path.stem, path.suffix, path.suffixes) == (pure.name, pure.stem, pure.suffix, pure.suffixes)
    assert str(path) == f"s3://bucket/{pure}" == path.as_posix()
    assert path.relative_to(path_of()) == pure
    assert path.parts[1:] == pure.parts
    assert str(path.with_name("x.y").relative_to(path_of())) == str(pure.with_name("x.y"))
    assert path.parent / path.name == path
    assert path.absolute() is path


def test_parents_end_at_the_bucket() -> None:
    assert str(path_of("a").parent) == "s3://bucket" == str(path_of("a").parent.parent)
    assert path_of("a/b.csv.gz").with_suffix(".x") == path_of("a/b.csv.x")
    assert sorted([path_of("a/b"), path_of("a"), path_of("a-b")]) == [path_of("a"), path_of("a/b"), path_of("a-b")]
    with pytest.raises(ValueError, match="is not below"):
        path_of("a").relative_to(location("s3://other"))  # type: ignore[arg-type]


def test_secrets_are_carried_and_never_shown() -> None:
    path = location(SECRET_URL)
    assert isinstance(path, RemotePath)
    for shown in (str(path), repr(path), str(path / "x"), path.parts, path.as_posix(), f"{path}"):
        assert "s3cr3t" not in str(shown)
        assert "AKIA" not in str(shown)
    assert str(path) == "s3://bucket/out/deep"
    assert path.has_credentials
    assert not path_of("x").has_credentials
    for again in (pickle.loads(pickle.dumps(path)), copy.deepcopy(path)):
        assert again == path
        assert hash(again) == hash(path)
        assert again._site == path._site
    assert path != path_of("out/deep")


def test_azure_containers_are_names_and_passwords_are_not() -> None:
    path = location("abfs://container:pass%2Fword@account.dfs.core.windows.net/a/b")
    assert str(path) == "abfs://container@account.dfs.core.windows.net/a/b"
    assert isinstance(path, RemotePath)
    assert path.has_credentials


def test_what_is_written_is_read(store: Store) -> None:
    path = path_of("a/b c/x.bin")
    assert not path.exists()
    assert path.write_bytes(b"hello") == 5
    assert path.exists()
    assert path.is_file()
    assert not path.is_dir()
    assert path.parent.is_dir()
    assert path.read_bytes() == b"hello"
    assert path.stat().st_size == 5
    assert path.write_text("grün") == 5
    assert path.read_text() == "grün"
    with path.open("r") as file:
        assert file.read() == "grün"
    path.unlink()
    assert not path.is_file()
    path.unlink(missing_ok=True)


def test_missing_objects_are_those_of_the_system(store: Store) -> None:
    path = path_of("nothing/here")
    for work in (path.read_bytes, path.open, path.unlink, path.stat, path.etag):
        with pytest.raises(FileNotFoundError) as caught:
            work()
        assert caught.value.filename == "s3://bucket/nothing/here"
        assert caught.value.errno == errno.ENOENT
    assert list(path.glob("*")) == []


def test_files_are_put_whole(store: Store, tmp_path: Path) -> None:
    local = tmp_path / "local"
    for content in (b"", b"x" * 100_000):
        local.write_bytes(content)
        path_of("put").put(local)
        assert path_of("put").read_bytes() == content


def test_reads_are_at_any_place(store: Store) -> None:
    data = bytes(range(256)) * 100
    path_of("data").write_bytes(data)
    with path_of("data").open_raw() as file:
        file.seek(-10, 2)
        assert file.read() == data[-10:]
        assert file.read() == b""
        file.seek(1000)
        assert file.tell() == 1000
        assert file.read(50) == data[1000:1050]
        file.seek(10, 1)
        buffer = bytearray(5)
        assert file.readinto(buffer) == 5
        assert bytes(buffer) == data[1060:1065]
    with path_of("data").open() as file:
        assert file.peek(2)[:2] == data[:2]
        assert file.read() == data
    with pytest.raises(ValueError, match="written whole"):
        path_of("data").open("wb")


@pytest.mark.parametrize(
    "pattern", ["*", "*.csv", "**/*", "**/*.csv", "d=*/x?.csv", "d=1/*", "**/d=2/**/*.csv", "[xy]*"]
)
def test_globs_are_those_of_pathlib(store: Store, tmp_path: Path, pattern: str) -> None:
    here = tmp_path / "here"
    for name in ("x.csv", "y.txt", ".hidden", "d=1/x1.csv", "d=1/x22.csv", "d=2/deep/er/x3.csv", "d=2/x4.csv"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
        path_of(f"glob/{name}").write_text(name)
    expected = sorted((path.relative_to(here) for path in here.glob(pattern)), key=lambda path: path.parts)
    found = list(path_of("glob").glob(pattern))
    assert [path.relative_to(path_of("glob")) for path in found] == [PurePosixPath(path) for path in expected]
    before = store.requests
    assert [path.is_dir() for path in found] == [(here / path).is_dir() for path in expected]
    assert all(
        path.stat().st_size == (here / path.relative_to(path_of("glob"))).stat().st_size
        for path in found
        if path.is_file()
    )
    # A listing says it all.
    assert store.requests == before


@pytest.mark.parametrize(
    "reason", ["AWS Error NETWORK_CONNECTION during X", "AWS Error SLOW_DOWN", "HTTP status 503", "odd"]
)
def test_requests_are_tried_again(store: Store, reason: str) -> None:
    path = path_of("again")
    path.write_bytes(b"0123456789")
    for work, expected in (
        (path.read_bytes, b"0123456789"),
        (path.exists, True),
        (lambda: path.write_bytes(b"0123456789"), 10),
        (lambda: [each.name for each in path.parent.glob("*")], ["again"]),
        (path.unlink, None),
    ):
        store.failures = [OSError(reason), OSError(reason)]
        assert work() == expected
        assert not store.failures


def test_a_removal_whose_answer_was_lost_is_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [OSError("AWS Error NETWORK_CONNECTION")]

    def remove(path: str) -> None:
        store.inner.delete_file(path)
        if answers:
            raise answers.pop()

    path_of("lost").write_bytes(b"1")
    monkeypatch.setattr(store, "delete_file", remove)
    path_of("lost").unlink()
    assert not path_of("lost").exists()


def test_reads_of_an_open_file_are_tried_again(store: Store) -> None:
    path_of("open").write_bytes(b"0123456789")
    with path_of("open").open_raw() as file:
        assert file.read(4) == b"0123"
        file._file = _Broken()
        store.failures = [OSError("AWS Error NETWORK_CONNECTION")]
        assert file.read(4) == b"4567"


def test_the_end_of_patience_is_one_line_with_name_and_advice(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = location(SECRET_URL)
    reason = f"At {SECRET_URL}: AWS Error NETWORK_CONNECTION during X of s3cr3t/plus and AKIAEXAMPLE\nmore"
    store.failures = [OSError(reason)] * 4
    monkeypatch.setattr(remote, "_told", set())
    with pytest.raises(OSError, match="no success in 4 tries") as caught:
        path.read_bytes()
    store.failures = [OSError(reason)] * 3
    path_of("x").exists()
    path.exists()
    assert caught.value.filename == "s3://bucket/out/deep"
    assert "run the same command again" in caught.value.strerror
    assert "NETWORK_CONNECTION" in caught.value.strerror
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "s3://bucket/out/deep: trying again after 3 failures",
        "s3://bucket/x: trying again after 3 failures",
    ]
    told = [
        caplog.text.strip().splitlines()[0],
        str(caught.value),
        repr(caught.value.__cause__),
        repr(caught.value.__context__),
    ]
    assert not any(secret in text for text in told for secret in ("s3cr3t", "AKIA", "\n"))
    assert not store.failures


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.", PermissionError, "access denied"),
        ("AWS Error INVALID_ACCESS_KEY_ID during PutObject", PermissionError, "credentials"),
        ("AWS Error UNKNOWN (HTTP status 403) during X", PermissionError, "access denied"),
        ("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload operation", OSError, "no such bucket"),
        ("AWS Error UNKNOWN (HTTP status 400) during X", OSError, r"cannot be used: .* during X: 's3:"),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation", OSError, "expired or malformed token"),
        ("Not a regular file: 'bucket/x'", IsADirectoryError, "found a folder, expected an object"),
    ],
)
def test_what_stays_is_told_at_once(store: Store, reason: str, kind: type[OSError], words: str) -> None:
    store.failures = [OSError(reason)] * 2
    with pytest.raises(kind, match=words):
        path_of("x").exists()
    assert len(store.failures) == 1


def test_parquet_is_read_through_it(store: Store, tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000))})
    pq.write_table(table, tmp_path / "x.parquet")
    path_of("x.parquet").put(tmp_path / "x.parquet")
    with pq.ParquetFile(pa.PythonFile(path_of("x.parquet").open_raw(), "r")) as file:
        assert file.read().equals(table)


def test_bad_options_of_a_url_are_told_without_secrets() -> None:
    path = location("s3://AKIAEXAMPLE:s3cr3t@bucket/x?bogus=1")
    with pytest.raises(OSError, match="bogus") as caught:
        path.exists()
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__context__!r}"
    assert "AKIA" not in str(caught.value)


def test_fsspec_stands_in_where_arrow_has_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.registry import _registry

    class Memory(MemoryFileSystem):  # type: ignore[misc]
        protocol = "gs"
        _strip_protocol = classmethod(lambda cls, path: "/" + path.removeprefix("gs://").strip("/"))

    class Lacking:
        @staticmethod
        def from_uri(url: str) -> None:
            raise pa.ArrowNotImplementedError("built without GCS")

    monkeypatch.setattr(fs, "FileSystem", Lacking)
    monkeypatch.setitem(_registry, "gs", Memory)
    path = location("gs://some-bucket/a/b")
    assert isinstance(path, RemotePath)
    path.write_bytes(b"hello")
    assert path.read_bytes() == b"hello"
    assert [each.name for each in path.parent.glob("*")] == ["b"]
    path.unlink()
    assert not path.exists()


def test_a_store_without_any_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking:
        @staticmethod
        def from_uri(url: str) -> None:
            raise ImportError("Arrow was built without Azure; install adlfs")

    monkeypatch.setattr(fs, "FileSystem", Lacking)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(OSError, match="cannot be used") as caught:
        location("abfs://c@nowhere.dfs.core.windows.net/x").exists()  # type: ignore[union-attr]
    assert "\n" not in str(caught.value)


def test_files_of_killed_processes_go_and_those_in_use_stay(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stray = tmp_path / "junctor-put-x.tmp"
    stray.write_bytes(b"left")
    with written_atomically(path_of("object")) as temporary:
        temporary.write_bytes(b"whole")
        clear_temporaries()
        assert temporary.exists()
        assert not stray.exists()
    assert path_of("object").read_bytes() == b"whole"
    with suppress(ZeroDivisionError), written_atomically(path_of("other")) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert not path_of("other").exists()
    assert not list(tmp_path.glob("junctor-put-*"))


def test_a_full_temporary_folder_is_told_by_its_name(store: Store) -> None:
    full = pytest.raises(RunError, match=rf"^{re.escape(tempfile.gettempdir())}: no space left")
    with full, written_atomically(path_of("object")):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")
