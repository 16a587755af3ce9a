"""What a job gives as digests: equal bytes have equal digests, and sums tell how far others are apart."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Of records: what depends on the clock, on where files lie, on the version, on the memory of the process, or on the
# last bit of an answer (checksums of files).
CHANGING = ("strategy", "block_cases", "threads", "seconds", "finished_at", "junctor_version", "directory", "folder")
LEFT_OUT = (*CHANGING, "placement", "peak_bytes", "process_bytes", "resident_bytes", "sha256", "files", "statistics")
# Multiplies a position into a weight from 0 to 1 by integers alone, so that every machine has the same weights.
SPREAD, WEIGHTS = 2_654_435_761, 1 << 32

# Of hexadecimal digits: nobody makes two outputs alike on purpose.
DIGITS = 20
MOST_COLUMNS = 12

Floats = npt.NDArray[np.float64]
Digest = dict[str, Any]


def digests(outputs: Mapping[str, Any]) -> dict[str, Digest]:
    """Return a digest for each output; each column of a table is one."""
    found: dict[str, Digest] = {}
    for name, output in outputs.items():
        if isinstance(output, pa.Table):
            found[f"{name}:columns"] = digest_of(json.dumps(output.column_names))
            alone, together = divided(output.column_names)
            found |= {f"{name}:{column}": digest_of(output[column]) for column in alone}
            if together:
                found[f"{name}:{len(together)} others"] = digest_of([output[column] for column in together])
        else:
            found[name] = digest_of(output)
    return found


def divided(columns: list[str]) -> tuple[list[str], list[str]]:
    """Return columns that have a digest each, and those of a wide table that share one: records stay small."""
    if len(columns) <= MOST_COLUMNS:
        return columns, []
    # What a row is called is first, how it went is last.
    half = MOST_COLUMNS // 2
    return [*columns[:half], *columns[-half:]], columns[half:-half]


def digest_of(output: Any) -> Digest:
    """Return the digest of a column, an array, a text, bytes or what JSON can hold.

    `bytes` is of all, `exact` of all but floating-point numbers, `numbers` sums these up.
    """
    exact, every = hashlib.sha256(), hashlib.sha256()
    numbers: list[npt.NDArray[Any]] = []
    for piece in pieces(output):
        if isinstance(piece, bytes):
            exact.update(piece)
            every.update(piece)
        else:
            every.update(np.ascontiguousarray(piece).tobytes())
            numbers.append(piece.reshape(-1).astype(np.float64))
    found: Digest = {"bytes": every.hexdigest()[:DIGITS]}
    if numbers:
        found |= {"exact": exact.hexdigest()[:DIGITS], "numbers": summary(np.concatenate(numbers))}
    return found


def pieces(output: Any) -> Iterator[bytes | npt.NDArray[Any]]:
    """Yield all that an output is, floating-point numbers as arrays and the rest as bytes."""
    if isinstance(output, bytes):
        yield output
    elif isinstance(output, str):
        yield output.encode()
    elif isinstance(output, np.ndarray):
        yield f"{output.dtype.str} {output.shape}".encode()
        yield output if output.dtype.kind == "f" else np.ascontiguousarray(output).tobytes()
    elif isinstance(output, pa.ChunkedArray):
        # How a column is cut says nothing of its content.
        yield from column_pieces(pa.concat_arrays(output.chunks) if output.chunks else pa.array([], output.type))
    elif isinstance(output, list) and output and isinstance(output[0], pa.ChunkedArray):
        for column in output:
            yield from pieces(column)
    else:
        numbers: list[float] = []
        yield json.dumps(without_floats(output, numbers), sort_keys=True).encode()
        if numbers:
            yield np.array(numbers)


def column_pieces(array: pa.Array) -> Iterator[bytes | npt.NDArray[Any]]:
    """Yield type, validity and values; what lies below a null is not looked at."""
    yield str(array.type).encode()
    yield np.packbits(np.array(array.is_valid())).tobytes() + str(len(array)).encode()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        yield json.dumps(array.value_lengths().to_pylist()).encode()
        yield from column_pieces(array.flatten())
    elif pa.types.is_floating(array.type):
        yield array.drop_null().to_numpy(zero_copy_only=False)
    else:
        yield json.dumps(array.to_pylist(), default=str).encode()


def without_floats(content: Any, numbers: list[float]) -> Any:
    """Return JSON content without its floating-point numbers, which are added to a list, in order of their keys."""
    if isinstance(content, Mapping):
        return {key: without_floats(content[key], numbers) for key in sorted(content)}
    if isinstance(content, (list, tuple)):
        return [without_floats(each, numbers) for each in content]
    if isinstance(content, float):
        numbers.append(content)
        return "float"
    return content


def cleaned(content: Any) -> Any:
    """Return JSON content without times, paths and versions."""
    if isinstance(content, Mapping):
        # How long a compressed file is depends on the last bits of the answers in it.
        left_out = ("bytes",) if "file" in content else ()
        return {
            key: cleaned(each) for key, each in content.items() if key not in left_out and not _is_left_out(key, each)
        }
    return [cleaned(each) for each in content] if isinstance(content, (list, tuple)) else content


def _is_left_out(key: str, content: Any) -> bool:
    # The stages of a run are times, those of sampling a word.
    return any(word in key for word in LEFT_OUT) or (key == "stages" and isinstance(content, Mapping))


def summary(values: Floats) -> dict[str, Any]:
    """Return counts and sums of numbers; those that are not finite are counted alone."""
    finite = np.isfinite(values)
    weights = (np.arange(values.size, dtype=np.int64) * SPREAD % WEIGHTS) / WEIGHTS
    kept = values[finite]
    counts = {"count": values.size, "nan": int(np.isnan(values).sum()), "up": int(np.isposinf(values).sum())}
    sums = {"sum": fsum(kept), "weighted": fsum(kept * weights[finite]), "size": fsum(np.abs(kept))}
    ends = {"least": float(kept.min()), "most": float(kept.max())} if kept.size else {}
    return counts | sums | ends


def fsum(values: Iterable[float]) -> float:
    """Return a sum that does not depend on the order."""
    return math.fsum(values)


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest relative difference of two summaries; infinite where they count differently."""
    if one.keys() != other.keys() or any(one[key] != other[key] for key in ("count", "nan", "up")):
        return math.inf
    # Sums may cancel, and the least may be next to nothing: what they are of says how large a difference is.
    scales = dict.fromkeys(("sum", "weighted", "size"), max(one["size"], other["size"]))
    scales |= dict.fromkeys(("least", "most"), max(abs(each.get(end, 0.0)) for each in (one, other) for end in ENDS))
    return max((abs(one[key] - other[key]) / scales[key] for key in scales if scales[key] and key in one), default=0.0)


ENDS = ("least", "most")
