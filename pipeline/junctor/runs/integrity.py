"""Damaged and missing files of a run: found by size when it goes on, by checksum when it is verified.

Main functions: `discard_damaged`, called where a run begins, and `verify`, called by the command line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from junctor.model.errors import RefusedError, RunError
from junctor.runs.increments import IncrementDirectory
from junctor.runs.partition import Part, read_part
from junctor.runs.storage import STATISTICS, AnySpec, Directory
from junctor.runtime.files import Checksum, checksum_of, io_errors_for, read_json, write_json
from junctor.runtime.machine import usable_cores
from junctor.runtime.records import told, typed
from junctor.runtime.remote import AnyPath
from junctor.runtime.threads import in_threads

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not as the run left it.

    file: relative to the run directory.
    kind: `missing`, `damaged`, `foreign` (in a folder of the run, but not its own) or `unfinished`.
    detail: found and expected, in words.
    """

    file: str
    kind: Literal["missing", "damaged", "foreign", "unfinished"]
    detail: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found in a run directory.

    files: number of files that were read.
    bytes: of them.
    without_checksum: files of them that the run has recorded no checksum of; of parts the metadata was checked.
    faults: in the order of their names.
    """

    files: int
    bytes: int
    without_checksum: int
    faults: tuple[Fault, ...]


def write_checksums(directory: Directory[Any], checksums: Mapping[str, Checksum]) -> None:
    """Write the checksums of encoded inputs, by file name."""
    write_json(directory.input_checksums, {name: asdict(checksum) for name, checksum in checksums.items()})


def read_checksums(directory: Directory[Any]) -> dict[str, Checksum]:
    """Return the checksums of encoded inputs; none of a run of an earlier version."""
    return checksums_in(read_json(directory.input_checksums) or {})


def checksums_in(record: Any) -> dict[str, Checksum]:
    """Return the checksums of a JSON record; raises TypeError for another one."""
    return typed(dict[str, Checksum], record)


def checksums_of(paths: list[AnyPath]) -> list[Checksum]:
    """Return the checksums of some files, read by all cores."""
    return in_threads(lambda path, _: checksum_of(path), paths, usable_cores())


def discard_damaged(directory: Directory[Any]) -> None:
    """Remove what an earlier call finished and something else damaged, so that this call makes it again.

    Looks at names, sizes and the metadata of parts; at the content of the others if one part is missing or damaged.
    """
    recorded = _recorded_or_discarded(directory)
    _check_size(directory.network, recorded.get(directory.model_file))
    if not directory.ingested.exists():
        return
    try:
        if _is_committed(directory):
            return
        spec = directory.read_spec()
        parts, inputs = directory.expected_parts(spec), read_checksums(directory)
    except RefusedError:
        raise
    except (RunError, TypeError) as error:
        _discard(directory.ingested, str(error))
        return
    counted = {path: path.stat().st_size for path in (directory.path / STATISTICS).glob("**/*.json")}
    for path in parts:
        _check_part(directory, path, spec, recorded.get(directory.name_of(path)))
        # Statistics are made with their part.
        statistics = directory.statistics(path)
        wanted = recorded.get(directory.name_of(statistics))
        if wanted is not None and counted.get(statistics) != wanted[0] and path.exists():
            _discard(path, f"of its statistics found {counted.get(statistics, 0):,} bytes, expected {wanted[0]:,}")
    if not directory.unanswered(spec):
        return
    # The manifest and its checksums give way to new ones, which must not vouch for what is damaged.
    _check_content(directory, parts, recorded)
    for path in parts:
        if directory.name_of(path) in recorded:
            _check_part(directory, path, spec, None)
    # Inputs of parts that are there are not needed again.
    needed = [directory.evidence_part(i) for i in directory.unanswered(spec)]
    if directory.counts().dataset is not None:
        return
    if not isinstance(directory, IncrementDirectory) and any(
        path.suffix != ".parquet" or path.name not in inputs for path in needed
    ):
        # Of an earlier version, which encoded them in another way.
        directory.forget()
        return
    for path in needed:
        expected = inputs.get(path.name)
        _check_size(path, None if expected is None else (expected.bytes, expected))
        if not path.exists():
            # The mark that all are there; those that are stay.
            logger.warning("%s: missing: made again", path)
            directory.ingested.unlink(missing_ok=True)


def _is_committed(directory: Directory[Any]) -> bool:
    """Return True for the mark of an increment that was left after its commit: no call makes its parts again."""
    if not isinstance(directory, IncrementDirectory):
        return False
    record = read_json(directory.manifest) or {}
    return directory.pending.number <= len(record.get("increments", ()))


def faulty_parts(directory: Directory[Any]) -> dict[AnyPath, str | None]:
    """Return the parts that are damaged, with the reason, or missing (None); removes nothing but a damaged manifest.

    Looks at names, sizes and the metadata of parts. Raises RunError for a damaged network or model.
    """
    recorded = _recorded_or_discarded(directory)
    spec, wanted = directory.read_spec(), recorded.get(directory.model_file)
    if (why := _other_size(directory.network, wanted)) is not None:
        raise RunError(f"{directory.network}: damaged ({why}): run the same command again")
    faulty: dict[AnyPath, str | None] = {}
    for path in directory.expected_parts(spec):
        if not path.exists():
            faulty[path] = None
        elif (why := _fault_of(directory, path, spec, recorded)) is not None:
            faulty[path] = why
    return faulty


def _fault_of(
    directory: Directory[Any], path: AnyPath, spec: AnySpec, recorded: Mapping[str, tuple[int, Checksum | None]]
) -> str | None:
    """Return what is wrong with a part that is there, None if nothing is."""
    statistics = directory.statistics(path)
    if (wanted := recorded.get(directory.name_of(path))) is not None:
        if (why := _other_size(path, wanted)) is not None:
            return why
        counted = recorded.get(directory.name_of(statistics))
        if counted is not None and not statistics.exists():
            return f"{directory.name_of(statistics)} is missing"
        why = _other_size(statistics, counted)
        return None if why is None else f"{directory.name_of(statistics)}: {why}"
    return _damage_of(directory, path, spec)


def _damage_of(directory: Directory[Any], path: AnyPath, spec: AnySpec) -> str | None:
    """Return why a part has no readable metadata, or is of another run, None for others; raises RefusedError."""
    try:
        # Renamed when it was whole: only what happened to the disk since can have damaged it.
        read_part(directory, path, spec)
    except RefusedError:
        raise
    except RunError as error:
        return str(error.__cause__ or error)
    return None


def _check_part(
    directory: Directory[Any], path: AnyPath, spec: AnySpec, recorded: tuple[int, Checksum | None] | None
) -> None:
    """Remove a part of another size than recorded; where nothing is, without readable metadata or of another run."""
    if recorded is not None:
        _check_size(path, recorded)
    elif path.exists() and (why := _damage_of(directory, path, spec)) is not None:
        _discard(path, why)


def _check_size(path: AnyPath, recorded: tuple[int, Checksum | None] | None) -> None:
    """Remove a file of another size than recorded."""
    if (why := _other_size(path, recorded)) is not None:
        _discard(path, why)


def _other_size(path: AnyPath, recorded: tuple[int, Checksum | None] | None) -> str | None:
    """Return found and expected, in words, for a file of another size than recorded; None for others."""
    if recorded is not None and path.exists() and (found := path.stat().st_size) != recorded[0]:
        return f"found {found:,} bytes, expected {recorded[0]:,}"
    return None


def _check_content(
    directory: Directory[Any], parts: list[AnyPath], recorded: Mapping[str, tuple[int, Checksum | None]]
) -> None:
    """Remove parts with another checksum than recorded."""
    expected = {directory.path / name: checksum for name, (_, checksum) in recorded.items() if checksum is not None}
    there = [path for path in parts if path in expected and path.exists()]
    for path, found in zip(there, checksums_of(there), strict=True):
        if (wanted := expected[path]) is not None and found != wanted:
            _discard(path, _difference(found, wanted))


def _recorded_or_discarded(directory: Directory[Any]) -> dict[str, tuple[int, Checksum | None]]:
    """Return the same as `_recorded`, without a manifest nothing; one that is damaged is removed.

    Raises RunError for a damaged one of increments: nothing else knows the inputs that were answered.
    """
    if directory.manifest.exists():
        try:
            return _recorded(directory)
        except RefusedError:
            raise
        except (RunError, KeyError, TypeError, AttributeError) as error:
            if isinstance(directory, IncrementDirectory):
                raise RunError(
                    f"{directory.manifest}: damaged ({error}), and only it knows which inputs were answered: restore "
                    "it from a copy, or delete it: then all inputs that are there are answered anew, and answers of "
                    "others go"
                ) from error
            _discard(directory.manifest, f"not a manifest ({error})")
    return {}


def _recorded(directory: Directory[Any]) -> dict[str, tuple[int, Checksum | None]]:
    """Return the bytes and the checksum (None in earlier versions) of each file of the manifest."""
    record = read_json(directory.manifest)
    if record is None:
        raise RunError("missing")
    parts = typed(tuple[Part, ...], record["parts"], "parts")
    if record["rows"] != sum(part.rows for part in parts):
        raise RunError("its rows are not those of its parts")
    files = checksums_in(record.get("files", {}))
    found: dict[str, tuple[int, Checksum | None]] = {name: (each.bytes, each) for name, each in files.items()}
    for part in parts:
        found[part.file] = part.bytes, None if part.sha256 is None else Checksum(part.bytes, part.sha256)
        if part.statistics is not None:
            name = directory.name_of(directory.statistics(directory.path / part.file))
            found[name] = part.statistics.bytes, part.statistics
    return found


def _discard(path: AnyPath, why: str) -> None:
    logger.warning("%s: damaged (%s): made again", path, why)
    with io_errors_for(path):
        path.unlink(missing_ok=True)


def verify(directory: Directory[Any]) -> Verified:
    """Read all files of a run, and return what is missing, damaged, foreign or unfinished.

    Raises RunError where there is no run.
    """
    spec = directory.read_spec()
    faults: list[Fault] = []
    expected: dict[str, Checksum | None] = {directory.model_file: None}
    is_listed = directory.manifest.exists()
    try:
        expected.update({name: checksum for name, (_, checksum) in _recorded(directory).items()})
    except RefusedError:
        raise
    except (RunError, KeyError, TypeError, AttributeError) as error:
        if is_listed:
            is_listed, remade = False, "the same command again makes a new one"
            if isinstance(directory, IncrementDirectory):
                remade = "restore it from a copy"
            faults.append(Fault(directory.manifest.name, "damaged", f"not a manifest{told(error)}: {remade}"))
        else:
            faults.append(Fault(directory.manifest.name, "missing", "not finished: run the same command again"))
    # Those of a dataset are its parts.
    expected = {**dict(_of_inputs(directory, faults)), **expected}
    if not is_listed and directory.ingested.exists():
        expected.update({directory.name_of(path): None for path in directory.expected_parts(spec)})
    there = [name for name in expected if (directory.path / name).exists()]
    inputs = f"{directory.inputs}/"
    faults += [
        Fault(name, "missing", "only needed to answer again" if name.startswith(inputs) else "no such file")
        for name in expected
        if name not in there
    ]
    found = checksums_of([directory.path / name for name in there])
    for name, checksum in zip(there, found, strict=True):
        wanted = expected[name]
        if wanted is not None and checksum != wanted:
            faults.append(Fault(name, "damaged", _difference(checksum, wanted)))
        elif wanted is None and name.startswith(f"{spec.folder}/"):
            why = _damage_of(directory, directory.path / name, spec)
            if why is not None:
                faults.append(Fault(name, "damaged", why))
    strangers = _strangers(directory, spec.folder, set(expected))
    # Without a manifest the parts of increments, or of evidence that is gone, are not known.
    are_known = is_listed or (directory.ingested.exists() and not isinstance(directory, IncrementDirectory))
    faults += (each for each in strangers if are_known or each.kind == "unfinished")
    without = sum(expected[name] is None for name in there)
    ordered = tuple(sorted(faults, key=lambda fault: fault.file))
    return Verified(len(there), sum(checksum.bytes for checksum in found), without, ordered)


def _of_inputs(directory: Directory[Any], faults: list[Fault]) -> Iterator[tuple[str, Checksum | None]]:
    if isinstance(directory, IncrementDirectory) and not directory.ingested.exists():
        # Evidence of increments is removed after their commit.
        return
    try:
        checksums, counts = read_checksums(directory), directory.counts()
    except RefusedError:
        raise
    except (RunError, TypeError) as error:
        faults.append(Fault(directory.name_of(directory.ingested), "damaged", str(error)))
        return
    # Of a dataset, it is verified as that.
    for i in range(counts.partitions if counts.dataset is None else 0):
        path = directory.evidence_part(i)
        yield directory.name_of(path), checksums.get(path.name)


def _strangers(directory: Directory[Any], answers: str, expected: set[str]) -> Iterator[Fault]:
    """Yield files in the folders of a run that are not its own: readers of the folder would take them for answers."""
    ours = {directory.ingested, directory.input_checksums}
    # A damaged mark of the inputs is told elsewhere.
    with suppress(RunError, TypeError):
        ours.update(map(directory.statistics, directory.expected_parts(directory.read_spec())))
    if isinstance(directory, IncrementDirectory):
        # Of an increment that was interrupted; the next one finds them by their names, or removes them.
        ours.update(directory.expected_parts(directory.read_spec()) if directory.ingested.exists() else ())
    folders = directory.inputs, answers, STATISTICS
    for folder in (directory.path, *(directory.path / name for name in folders)):
        # Partitions of increments have folders of their own.
        for path in folder.glob("*" if folder == directory.path else "**/*"):
            if path.is_dir():
                continue
            name = directory.name_of(path)
            if path.name.startswith(".") and path.name.endswith(".tmp"):
                yield Fault(name, "unfinished", "left by a killed process; the next run removes it")
            elif folder != directory.path and path not in ours and name not in expected:
                yield Fault(name, "foreign", "not a file of this run")


def _difference(found: Checksum, expected: Checksum) -> str:
    if found.bytes != expected.bytes:
        return f"found {found.bytes:,} bytes, expected {expected.bytes:,}"
    return f"found SHA-256 {found.sha256[:12]}..., expected {expected.sha256[:12]}..."
