from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.format_helpers import BIF, CONTENT, COSTS, NETWORK, UAI, XMLBIF, assert_same, error_of, fuzz, odd_networks
from hypothesis import given
from hypothesis import strategies as st
from junctor.formats import EXTENSIONS, WRITABLE, files, read_network, uai, write_network
from junctor.formats.files import decode, place_at
from junctor.formats.numbers import BadNumber, parse_numbers
from junctor.model.errors import InputError, ModelError, RunError
from junctor.model.network import Network

Factory = pytest.TempPathFactory


def _is_right(network: Network, format: str) -> None:
    # Factor graphs have no direction.
    expected = replace(NETWORK, kind="markov") if format == "fg" else NETWORK
    expected = COSTS if format in ("wcsp", "cfn") else expected
    assert_same(network, expected, names=format not in ("uai", "fg", "wcsp"))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("format", "extension"), [(name, end) for name, ends in EXTENSIONS.items() for end in ends])
def test_the_extension_tells_the_format(tmp_path: Path, format: str, extension: str, zipped: bool) -> None:
    content = gzip.compress(CONTENT[format]) if zipped else CONTENT[format]
    for name in (f"n{extension}", f"My.Model{extension.upper()}"):
        path = tmp_path / (name + (".gz" if zipped else ""))
        path.write_bytes(content)
        _is_right(read_network(path), format)
        _is_right(read_network(str(path)), format)


_FINDINGS = {
    "bif": ("{ no, yes };", "{ no, yes }; property observed no;"),
    "xmlbif": ("</VARIABLE>", "<PROPERTY>observed no</PROPERTY></VARIABLE>"),
    "xdsl": ("</smile>", '<cases><case name="c"><evidence node="a" state="no"/></case></cases></smile>'),
    "dsl": ("  PARENTS = ();", "  PARENTS = (); EVIDENCE = { STATE = 1; }; EVIDENCE = { };"),
    "netica": ("parents = ();", "parents = (); evidence = 1;"),
    "pgmx": (
        "</ProbModelXML>",
        '<Evidence><EvidenceCase><Finding variable="a" state="no"/></EvidenceCase></Evidence></ProbModelXML>',
    ),
}


@pytest.mark.parametrize("format", _FINDINGS)
def test_findings_of_a_file_are_no_evidence_and_noted(
    tmp_path: Path, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = _FINDINGS[format]
    text = CONTENT[format].decode()
    assert old in text
    path = tmp_path / f"n{EXTENSIONS[format][0]}"
    path.write_text(text.replace(old, new, 1))
    _is_right(read_network(path), format)
    assert caplog.messages == [f"{path}: findings that are stored in the file are no evidence here: a"]


@pytest.mark.parametrize("format", EXTENSIONS)
def test_gzip_is_known_by_its_first_bytes(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"n{EXTENSIONS[format][0]}"
    path.write_bytes(gzip.compress(CONTENT[format]))
    _is_right(read_network(path), format)
    misnamed = tmp_path / f"m{EXTENSIONS[format][0]}.gz"
    misnamed.write_bytes(CONTENT[format])
    _is_right(read_network(misnamed), format)


@pytest.mark.parametrize("name", ["n", "n.txt", "n.gz", "n.model.gz"])
@pytest.mark.parametrize("format", EXTENSIONS)
def test_without_an_extension_the_content_tells(tmp_path: Path, format: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(CONTENT[format])
    _is_right(read_network(path), format)
    comments = {"bif": "// by hand\n/* really\n*/ ", "hugin": "% by hand\n", "uai": "# by hand\n", "fg": "# by hand\n"}
    if format in comments:
        path.write_bytes(b"\xef\xbb\xbf" + comments[format].encode() + CONTENT[format])
        _is_right(read_network(path), format)


@pytest.mark.parametrize("format", EXTENSIONS)
def test_a_named_format_comes_before_the_extension(tmp_path: Path, format: str) -> None:
    path = tmp_path / ("n.bif" if format != "bif" else "n.uai")
    path.write_bytes(CONTENT[format])
    _is_right(read_network(path, format), format)
    _is_right(read_network(path, format.upper()), format)
    _is_right(read_network(path, EXTENSIONS[format][0]), format)


def test_what_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    def refused(name: str, content: bytes | None = None, format: str | None = None) -> str:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        message = error_of(lambda: read_network(path, format))
        assert message.startswith(f"{path}: ") or format == "bff"
        return message.removeprefix(f"{path}: ")

    assert refused("none.bif") == "there is no such file"
    assert refused("none.parquet") == "there is no such file"
    assert refused("none") == "there is no such file"
    assert refused("") == "found a directory, expected a network file"
    assert refused("empty.bif", b"") == "the file is empty, expected a network"
    assert refused("empty.uai.gz", gzip.compress(b"")) == "the file is empty, expected a network"
    packed = gzip.compress(UAI.encode() * 100)
    assert "the gzip data is cut short or damaged" in refused("n.uai.gz", packed[:-10])
    assert "the gzip data is cut short or damaged" in refused("n.uai.gz", packed[:40] + b"xx" + packed[42:])
    assert "the gzip data is cut short or damaged" in refused("n.uai.gz", packed + b"more")
    assert "neither the extension nor the content tells the format" in refused("n.txt", b"hello")
    assert "xmlbif (.xml .bifxml .xmlbif .xbif)" in refused("n.txt", b"<html><body/></html>")
    assert "unknown format 'bff', did you mean 'bif'?" in refused("n.bif", BIF.encode(), "bff")
    assert "this is no Parquet file" in refused("n.parquet", BIF.encode())


def test_a_binary_file_is_told_from_a_text(tmp_path: Path) -> None:
    path = tmp_path / "n.uai"
    path.write_bytes(b"BAYES 1\n2\0 1")
    assert error_of(lambda: read_network(path)) == (
        f"{path}:2:2: found a NUL byte, expected text; is this a binary file?"
    )


def test_a_path_with_a_nul_character_is_an_error_of_ours() -> None:
    assert "cannot be read" in error_of(lambda: read_network("a\0.bif"))
    with pytest.raises(RunError, match="cannot be written"):
        write_network(NETWORK, "a\0.bif")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "n.bif"
    path.write_bytes(BIF.encode())
    path.chmod(0)
    assert "cannot be read: Permission denied" in error_of(lambda: read_network(path))


def test_a_gzip_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 2**21)
    path = tmp_path / "n.parquet.gz"
    path.write_bytes(gzip.compress(bytes(2**24)))
    assert "the file holds more than the 2,097,152 bytes that are allowed" in error_of(lambda: read_network(path))
    path = tmp_path / "n.bif"
    path.write_bytes(gzip.compress(bytes(2**24)))
    assert "bytes that are allowed" in error_of(lambda: read_network(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("content", [UAI.encode(), gzip.compress(UAI.encode())], ids=["plain", "gzip"])
def test_a_pipe_can_be_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "n.uai"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,))
    writer.start()
    _is_right(read_network(path), "uai")
    writer.join()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_of_text(encoding: str) -> None:
    assert decode("étés\r\nä\rb".encode(encoding)) == "étés\nä\nb"


def test_places_count_from_one() -> None:
    text = "ab\ncd\n"
    assert [str(place_at(text, i, "f")) for i in range(7)] == [
        "f:1:1",
        "f:1:2",
        "f:1:3",
        "f:2:1",
        "f:2:2",
        "f:2:3",
        "f:3:1",
    ]


@given(st.lists(st.floats() | st.integers(-5, 10**6)), st.sampled_from([" ", "\n", "\t \n", "\u00a0"]))
def test_numbers_are_those_that_were_written(numbers: list[float], space: str) -> None:
    found = parse_numbers(space.join(map(repr, numbers))).tolist()
    assert [repr(float(number)) for number in numbers] == [repr(number) for number in found]


@pytest.mark.parametrize("word", ["x", "1_0", "1,5", "0x1", "1e", "--1", "٣", "1.2.3", "1é"])
def test_the_first_bad_number_is_found(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in (2**20, 3):
        monkeypatch.setattr("junctor.formats.numbers.BLOCK", block)
        with pytest.raises(BadNumber) as caught:
            parse_numbers(f"0.5 1e-5\n  7 {word} 8 y")
        assert (caught.value.word, caught.value.offset) == (word, 13)


@pytest.mark.parametrize("block", [2**20, 3])
def test_numbers_that_are_too_small_are_told(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.formats.numbers.BLOCK", block)
    zeros = ["0", "-0.0", "0e5", "0E-400", ".0", "+0"]
    long = f"0.{'0' * 330}1"
    for text, expected in [
        (" ".join(["1e-300", "5e-324", "0.5", *zeros]), []),
        ("1e-400 0.5 2E-999 0 -1e-324", ["1e-400", "2E-999", "-1e-324"]),
        (f"1 {long} 0", [long]),
    ]:
        lost: list[str] = []
        parse_numbers(text, lost)
        assert lost == expected


# Costs are no factors: one that is too small is 0, as all its decimals are.
@pytest.mark.parametrize("format", [name for name in EXTENSIONS if name not in ("parquet", "wcsp", "cfn")])
def test_numbers_that_are_too_small_are_noted(tmp_path: Path, format: str, caplog: pytest.LogCaptureFixture) -> None:
    text = CONTENT[format].decode()
    tables = (("0.1, 0.9", "1e-400, 1"), ("0.1 0.9", "1e-400 1"), ("0 0.1\n1 0.8\n2 0.9", "0 1e-400\n1 0.8\n2 1"))
    old, new = next((old, new) for old, new in tables if old in text)
    path, text = tmp_path / f"n{EXTENSIONS[format][0]}", text.replace(old, new)
    path.write_text(text)
    assert read_network(path).factors[1].table.tolist() == [[0.0, 1.0], [0.8, 0.2]]
    place = place_at(text, text.index("1e-400"), str(path))
    assert caplog.messages == [f"{place}: numbers such as '1e-400' are too small for a double: taken as 0"]


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n.uai"
    path.write_text("before")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunError, match=f"{path}: cannot be written: No space left on device"):
        write_network(NETWORK, path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["n.uai"]


def test_written_files_have_the_usual_permissions(tmp_path: Path) -> None:
    write_network(NETWORK, tmp_path / "n.uai")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "n.uai").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["n.uai", "other"]


def test_writing_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.uai").symlink_to(tmp_path / "real.uai")
    write_network(NETWORK, tmp_path / "link.uai")
    assert (tmp_path / "link.uai").is_symlink()
    _is_right(read_network(tmp_path / "real.uai"), "uai")


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("format", WRITABLE)
def test_what_is_written_reads_back(tmp_path: Path, format: str, end: str) -> None:
    path = tmp_path / f"n{EXTENSIONS[format][0]}{end}"
    warnings = write_network(NETWORK, path)
    _is_right(read_network(path), format)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") is bool(end)
    first = path.read_bytes()
    assert write_network(NETWORK, path) == warnings
    assert path.read_bytes() == first
    assert warnings == (
        ("UAI files have no names: variables and states are numbered from 0, in the order of the network",)
        if format == "uai"
        else ()
    )
    assert write_network(read_network(path), path) == ()


@pytest.mark.parametrize("other", [None, "a.bif"])
def test_what_is_no_network_is_not_written(tmp_path: Path, other: Any) -> None:
    with pytest.raises(InputError, match="as network, expected a Network: read_network makes one of a file"):
        write_network(other, tmp_path / "n.bif")


def test_what_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    known = "formats that can: bif (.bif), xmlbif (.xml .bifxml .xmlbif .xbif), hugin (.net .hugin), xdsl (.xdsl), "
    known += "netica (.dne .neta), uai (.uai), parquet (.parquet)"
    assert error_of(lambda: write_network(NETWORK, tmp_path / "n.pgmx")) == (
        f"{tmp_path}/n.pgmx: files of format 'pgmx' cannot be written; {known}"
    )
    assert "the extension names no known format" in error_of(lambda: write_network(NETWORK, tmp_path / "n"))
    with pytest.raises(RunError, match="No such file or directory"):
        write_network(NETWORK, tmp_path / "no" / "n.bif")
    (tmp_path / "d.bif").mkdir()
    with pytest.raises(RunError, match="found a directory"):
        write_network(NETWORK, tmp_path / "d.bif")
    os.mkfifo(tmp_path / "p.bif")
    with pytest.raises(InputError, match="found a pipe, which a file would replace"):
        write_network(NETWORK, tmp_path / "p.bif")
    (tmp_path / "p.bif").unlink()
    assert "unknown format" in error_of(lambda: write_network(NETWORK, tmp_path / "n.bif", "docx"))
    markov = uai.read("MARKOV 1 2 0")
    error_of(lambda: write_network(markov, tmp_path / "n.bif"))
    assert os.listdir(tmp_path) == ["d.bif"]


@given(network=odd_networks())
def test_every_writer_keeps_the_network_or_refuses_it(
    tmp_path_factory: pytest.TempPathFactory, network: Network
) -> None:
    folder = tmp_path_factory.mktemp("written")
    for format in ("uai", "parquet"):
        write_network(network, folder / f"n.{format}")
        assert_same(read_network(folder / f"n.{format}"), network, names=format != "uai")
    try:
        write_network(network, folder / "n.bif")
    except ModelError:
        return
    assert_same(read_network(folder / "n.bif"), network)


def test_reading_bif_imports_neither_arrow_nor_xml(tmp_path: Path) -> None:
    (tmp_path / "n.bif").write_text(BIF)
    code = (
        "import sys; from junctor.formats import read_network; "
        f"read_network({str(tmp_path / 'n.bif')!r}); "
        "print([name for name in ('pyarrow', 'defusedxml', 'xml.etree', 'prefect', 'dask') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_mutated_files_of_no_known_format_give_a_network_or_our_error(tmp_path: Path) -> None:
    path = tmp_path / "n"

    def read(data: bytes) -> Network:
        path.write_bytes(data)
        return read_network(path)

    read_well, refused = fuzz(read, [*CONTENT.values(), gzip.compress(XMLBIF.encode())], 500)
    assert read_well > 6
    assert refused > 160
