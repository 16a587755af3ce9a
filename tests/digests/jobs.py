"""The jobs: small questions of every kind, by every way there is to answer them, with the same output every time."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from junctor import hmm
from junctor.generate import chain, evidence_table, grid, layered, random_network, sample
from junctor.generate import hmm as unrolled
from junctor.model.network import Network
from junctor.model.strategies import Strategy
from pyarrow import ipc, parquet

from digests import stand_in
from digests.outputs import cleaned

DATA = Path(__file__).parents[2] / "data"
OLD_RUN = Path(__file__).parent / "old_run"
PRECISIONS = ("double", "single", "log")
# Of numbers, where another platform rounds in another way.
CLOSE = {"double": 1e-12, "single": 1e-5, "log": 1e-12}
# What would otherwise depend on the machine; room for files too, because plans in chunks ask for it.
HERE = ("--no-prefect", "--quiet", "--json", "--device", "cpu", "--disk", "1GiB")
ALONE = (*HERE, "--workers", "0", "--threads", "2")
ENOUGH = ("--memory", "1GiB")
# Rows of all kinds: observed, nothing observed, impossible, a state that there is not, the first one again.
CHEST = "case_id,smoke,xray,either,lung\na,yes,no,,\nb,,,,\nc,,yes,no,yes\nd,maybe,yes,,\ne,yes,no,,\nf,no,yes,yes,\n"
SOFT = "smoke,xray=yes,xray=no\nyes,0.5,2\n,,\nno,0.3,\nyes,0,0\n,1,0\n"

Outputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What writes into a folder and returns what came out; tolerance: of its numbers on another platform."""

    name: str
    work: Callable[[Path], Outputs]
    slow: bool
    tolerance: float

    def run(self, folder: Path) -> Outputs:
        """Return what it gives; the folder is empty and becomes the current one."""
        with settled(folder):
            return self.work(folder)


JOBS: dict[str, Job] = {}


def job(name: str, slow: bool = False, precision: str = "double") -> Callable[[Callable[..., Outputs]], Any]:
    """Enter a function as a job."""

    def enter(work: Callable[..., Outputs]) -> Callable[..., Outputs]:
        assert name not in JOBS
        JOBS[name] = Job(name, work, slow, CLOSE[precision])
        return work

    return enter


def each_precision(
    name: str, precisions: Sequence[str] = PRECISIONS, slow: bool = False
) -> Callable[[Callable[[Path, str], Outputs]], Any]:
    """Enter a function as a job for each precision."""

    def enter(work: Callable[[Path, str], Outputs]) -> Callable[[Path, str], Outputs]:
        for precision in precisions:

            def one(folder: Path, precision: str = precision) -> Outputs:
                return work(folder, precision)

            job(f"{name}-{precision}", slow, precision)(one)
        return work

    return enter


@contextmanager
def settled(folder: Path) -> Iterator[None]:
    """Make a folder the current one, without settings of the user, on a machine of two cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [each for each in os.environ if each.startswith(("JUNCTOR_", "PREFECT_"))]:
            patch.delenv(name)
        # Whether code is compiled would say who answers rows.
        patch.setenv("JUNCTOR_CACHE", "off")
        # Where measurements of this machine would change forecasts.
        patch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        # What is planned for many rows is shown with few of them.
        patch.setattr("junctor.strategies.facts.FEW_ROWS", 0)
        yield


def command(*words: str, code: int = 0) -> str:
    """Return what the command line prints."""
    result = junctor_cli(*words)
    if result.exit_code != code:
        raise RuntimeError(f"junctor {' '.join(words)}: {result.exit_code}\n{result.output}") from result.exception
    return result.stdout


def refusal(*words: str, code: int) -> str:
    """Return what the command line says of a mistake."""
    result = junctor_cli(*words)
    assert result.exit_code == code, result.output
    return result.stderr


def answered(*words: str, folder: str = "posteriors", options: Sequence[str] = (*ALONE, *ENOUGH)) -> Outputs:
    """Return answers and records of `junctor run`, or of another command that leaves a run."""
    command(*words, "--output", "out", *options)
    return left_by(Path("out"), folder)


def left_by(run: Path, folder: str = "posteriors") -> Outputs:
    """Return the answers in the directory of a run, part after part, and its records."""
    parts = sorted((run / folder).glob("part-*.parquet"))
    answers = {"answers": pa.concat_tables([parquet.read_table(part) for part in parts])}
    return {**answers, **{path.name: cleaned(json.loads(path.read_text())) for path in records(run)}}


def records(run: Path) -> list[Path]:
    """Return the records of a run."""
    return sorted([*run.glob("*.json"), *run.glob("*/done.json")])


def chest() -> str:
    """Write rows of evidence; return the network that they are for."""
    Path("chest.csv").write_text(CHEST)
    return str(DATA / "asia.bif")


def files(network: Network, rows: int, observed: float = 0.3, pattern: Any = "missing") -> tuple[str, str]:
    """Write a network and evidence for it."""
    junctor.write_network(network, "network.bif")
    table = evidence_table(network, sample(network, rows, seed=1), observed, pattern, seed=1)
    parquet.write_table(table, "evidence.parquet")
    return "network.bif", "evidence.parquet"


def lattice(side: int, states: Any = 2, seed: int = 1) -> tuple[str, str]:
    """Write a grid, whose tables are large, and three rows of evidence, the first one again at the end."""
    junctor.write_network(grid(side, side, states, seed), "grid.uai")
    Path("grid.csv").write_text("0,5\n,\n0,1\n,\n")
    return "grid.uai", "grid.csv"


# Posteriors and explanations of a few rows, in NumPy.


@each_precision("rows-few")
def _few(_: Path, precision: str) -> Outputs:
    return answered("run", chest(), "chest.csv", "--precision", precision, "--partition-rows", "4")


@each_precision("rows-mpe")
def _mpe(_: Path, precision: str) -> Outputs:
    words = ("--precision", precision, "--query", "mpe", "--csv")
    return {**answered("run", chest(), "chest.csv", *words, folder="mpe"), "csv": Path("out/mpe.csv").read_text()}


@job("rows-targets")
def _targets(_: Path) -> Outputs:
    words = ("--targets", "lung, either", "--case-id", "case_id", "--csv")
    return {**answered("run", chest(), "chest.csv", *words), "csv": Path("out/posteriors.csv").read_text()}


@job("rows-scores")
def _scores(_: Path) -> Outputs:
    words = ("--answers", "scores", "--probability", "lung=yes", "--keep", "smoke", "--targets", "[elx]*", "--csv")
    return {
        **answered("run", chest(), "chest.csv", *words, folder="scores"),
        "csv": Path("out/scores.csv").read_text(),
    }


@job("rows-scores-top")
def _scores_top(_: Path) -> Outputs:
    words = ("--answers", "scores", "--top", "3", "--precision", "single", "--layout", "columns")
    return answered("run", chest(), "chest.csv", *words, folder="scores")


@job("rows-columns")
def _columns(_: Path) -> Outputs:
    words = ("--layout", "columns", "--compression", "lz4", "--targets", "lung,xray", "--keep", "smoke")
    return answered("run", chest(), "chest.csv", *words)


@job("rows-soft")
def _soft(_: Path) -> Outputs:
    Path("soft.csv").write_text(SOFT)
    return answered("run", chest(), "soft.csv")


@job("rows-soft-lists")
def _soft_lists(_: Path) -> Outputs:
    lists = [[0.5, 2.0], None, [0.0, 0.0], [1e-200, 1e-190], [1.0]]
    evidence = pa.table({"smoke": ["yes", None, "no", "no", "yes"], "xray": pa.array(lists)})
    network = str(DATA / "asia.bif")
    return {"posteriors": posteriors(network, evidence), "mpe": explanations(network, evidence)}


@job("rows-markov")
def _markov(_: Path) -> Outputs:
    rows = [{}, {"0": 1}, {"0": 1, "2": 0}]
    network = str(DATA / "misconception.uai")
    return {"posteriors": posteriors(network, rows), "mpe": explanations(network, rows)}


@job("rows-equal")
def _equal(_: Path) -> Outputs:
    network, evidence = files(random_network(20, seed=4, zeros=0.2), 30, pattern="random")
    table = parquet.read_table(evidence)
    again = np.random.default_rng(0).integers(0, 30, 200)
    parquet.write_table(table.take(pa.array(again)), evidence)
    return answered("run", network, evidence)


@job("rows-none")
def _none(_: Path) -> Outputs:
    network, evidence = files(random_network(6, seed=4), 0)
    return answered("run", network, evidence)


@job("rows-textbook")
def _textbook(_: Path) -> Outputs:
    return {path.stem: posteriors(str(path), pa.table({"case_id": [1]})) for path in sorted(DATA.glob("*.bif"))}


@job("rows-underflow", precision="single")
def _underflow(_: Path) -> Outputs:
    """Rows that leave the range of single precision, and of double."""
    table = np.array([[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]])
    network = unrolled(60, [0.5, 0.5], table, table)
    rows = {f"symbol_{n + 1}": ["0", "01"[n % 2], None] for n in range(60)}
    return {precision: posteriors(network, rows, ["state_60"], precision) for precision in ("single", "double")}


def posteriors(network: Any, evidence: Any, targets: Any = None, precision: Any = "double", **more: Any) -> pa.Table:
    """Return posteriors by the Python interface."""
    settings = {"memory": "1GiB", "threads": 2, "device": "cpu", "disk": "1GiB", **more}
    return junctor.posteriors(network, evidence, targets, precision, **settings)


def explanations(network: Any, evidence: Any) -> pa.Table:
    """Return explanations by the Python interface."""
    return junctor.most_probable(network, evidence, memory="1GiB", threads=2, device="cpu")


@each_precision("calls", ("double", "single"))
def _calls(_: Path, precision: str) -> Outputs:
    """A few rows in a call: of a small network, of a larger one, and rows that leave the range of double."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("junctor.strategies.facts.FEW_ROWS", 64)
        table = np.array([[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]])
        unlikely = {f"symbol_{n + 1}": ["0", "01"[n % 2]] for n in range(60)}
        larger = random_network(40, seed=3, zeros=0.1)
        rows = evidence_table(larger, sample(larger, 20, seed=1), 0.3, "random", seed=1)
        return {
            "chest": posteriors(str(DATA / "asia.bif"), [{"smoke": "yes"}, {"xray": "no"}, {}], precision=precision),
            "larger": posteriors(larger, rows, precision=precision),
            "unlikely": posteriors(unrolled(60, [0.5, 0.5], table, table), unlikely, ["state_60"], precision),
        }


# Compiled loops over cases and over entries, and a tree for each row.


@each_precision("blocks-many-rows")
def _blocks(_: Path, precision: str) -> Outputs:
    with stand_in.compiled(Strategy.CPU_BLOCKS):
        words = ("--precision", precision, "--partition-rows", "500")
        return answered("run", *files(layered(5, 4, (2, 3), seed=2), 1200), *words)


@job("blocks-mpe")
def _blocks_mpe(_: Path) -> Outputs:
    with stand_in.compiled(Strategy.CPU_BLOCKS):
        network = files(layered(4, 4, (2, 3), seed=5, zeros=0.3), 300)
        return answered("run", *network, "--query", "mpe", folder="mpe")


@job("blocks-as-they-come", slow=True)
def _as_they_come(_: Path) -> Outputs:
    """So many rows that compiled code pays without being asked for."""
    words = ("--targets", "x_5_0,x_0_3", "--partition-rows", "12000")
    return answered("run", *files(layered(9, 6, 4, seed=2), 20_000, 0.2, "fixed"), *words)


@job("blocks-patterns")
def _patterns(_: Path) -> Outputs:
    with stand_in.compiled(Strategy.CPU_BLOCKS):
        return answered("run", *files(random_network(40, seed=3, zeros=0.1), 100, pattern="random"))


@each_precision("entries")
def _entries(_: Path, precision: str) -> Outputs:
    with stand_in.compiled(Strategy.ENTRIES):
        return answered("run", *lattice(9), "--precision", precision)


@each_precision("row-trees", ("double", "single"))
def _row_trees(_: Path, precision: str) -> Outputs:
    with stand_in.compiled(Strategy.ROW_TREES):
        return answered("run", *files(chain(300, 4, seed=3), 90, 0.3, "random"), "--precision", precision)


# Blocks on a GPU.


@each_precision("gpu-blocks", slow=True)
def _gpu_blocks(_: Path, precision: str) -> Outputs:
    network = layered(3, 3, (2, 3), seed=2)
    table = evidence_table(network, sample(network, 60, seed=1), 0.3, "missing", seed=1)
    with stand_in.block_gpu() as device:
        return {"answers": stand_in.answers_on(device, network, table, precision)}


@job("gpu-run", slow=True)
def _gpu_run(_: Path) -> Outputs:
    with stand_in.block_gpu():
        words = (*HERE, "--workers", "0", *ENOUGH, "--device", "gpu")
        return answered("run", chest(), "chest.csv", "--precision", "single", options=words)


# Rows in chunks.


@each_precision("chunks")
def _chunks(_: Path, precision: str) -> Outputs:
    return answered("run", *lattice(8), "--precision", precision, "--device-memory", "4KiB")


@job("chunks-mpe")
def _chunks_mpe(_: Path) -> Outputs:
    return answered("run", *lattice(8), "--query", "mpe", "--device-memory", "4KiB", folder="mpe")


@job("chunks-sizes")
def _chunk_sizes(_: Path) -> Outputs:
    network = grid(6, 6, (2, 3), seed=3)
    rows = [{}, {"x_0_1": 1, "x_3_3": [0.2, 0.7, 0.1][: network.cardinalities[21]]}]
    return {size: posteriors(network, rows, device_memory=size) for size in ("2KiB", "8KiB", "64KiB")}


@job("chunks-few-bytes", slow=True)
def _chunks_few(_: Path) -> Outputs:
    options = (*ALONE, "--memory", "4MiB")
    return answered("run", *lattice(12), options=options)


@job("chunks-spilled")
def _spilled(folder: Path) -> Outputs:
    spill = folder / "spill"
    spill.mkdir()
    with stand_in.chunks_on_disk():
        found = answered("run", *lattice(7), "--spill", str(spill))
    return {**found, "left": [path.name for path in spill.iterdir()]}


@each_precision("chunks-gpu", ("double", "single", "log"), slow=True)
def _chunks_gpu(_: Path, precision: str) -> Outputs:
    return {f"{count} devices": stand_in.chunks_on_gpus(grid(3, 4, seed=1), precision, count) for count in (1, 2)}


@job("chunks-gpu-little-room", slow=True)
def _chunks_gpu_room(_: Path) -> Outputs:
    network = grid(4, 4, seed=2)
    return {f"{count} devices": stand_in.chunks_on_gpus(network, "double", count, 1 << 12) for count in (1, 2)}


@job("workers", slow=True)
def _workers(_: Path) -> Outputs:
    options = (*HERE, *ENOUGH, "--workers", "2", "--threads", "1")
    return answered("run", chest(), "chest.csv", "--partition-rows", "2", options=options)


# Sampling.


@job("sampling-lw")
def _lw(_: Path) -> Outputs:
    return sampled("lw")


@job("sampling-sis")
def _sis(_: Path) -> Outputs:
    return sampled("sis")


@job("sampling-ais-bn")
def _ais(_: Path) -> Outputs:
    return sampled("ais-bn", "--stages", "last")


@job("sampling-epis-bn")
def _epis(_: Path) -> Outputs:
    return sampled("epis-bn", "--targets", "lung,smoke")


@job("sampling-wmb")
def _wmb(_: Path) -> Outputs:
    """Of so few entries that buckets are split."""
    return sampled("wmb", "--table-entries", "30", "--confidence", "0.9")


@job("sampling-error")
def _error(_: Path) -> Outputs:
    words = ("--method", "sampling", "--error", "0.01", "--seed", "3")
    return answered("run", chest(), "chest.csv", *words)


def sampled(sampler: str, *words: str) -> Outputs:
    """Return estimates for rows of all kinds, and for soft evidence."""
    Path("soft.csv").write_text(SOFT)
    how = ("--method", "sampling", "--sampler", sampler, "--samples", "3000", "--seed", "5", *words)
    found = answered("run", chest(), "chest.csv", "--partition-rows", "2", *how)
    shutil.move("out", "first")
    soft = answered("run", chest(), "soft.csv", *how)
    return {**found, "soft": soft["answers"]}


@job("sampling-auto")
def _auto(_: Path) -> Outputs:
    """A memory that some rows exceed and others do not."""
    network = layered(6, 6, 3, seed=2)
    table = evidence_table(network, sample(network, 8, seed=1), 0.2, "random", seed=1)
    more = {"method": "auto", "samples": 1000, "seed": 4, "targets": ["x_5_0", "x_0_0"]}
    return {size: posteriors(network, table, memory=size, disk="1KiB", **more) for size in ("700KiB", "1GiB")}


@job("sampling-gpu", slow=True)
def _sampling_gpu(_: Path) -> Outputs:
    network = random_network(8, (2, 3), seed=2)
    table = evidence_table(network, sample(network, 3, seed=1), 0.3, seed=1)
    return {name: stand_in.samples_on_gpu(network, table, name) for name in ("lw", "ais-bn", "epis-bn")}


# Hidden Markov models.


def machine(states: int = 6, symbols: int = 3, zeros: float = 0.0, seed: int = 1, sparse: bool = False) -> Any:
    """Return a hidden Markov model with random tables, some entries of which are zero."""
    rng = np.random.default_rng(seed)
    start, move, emit = (stochastic(rng, shape, zeros) for shape in ((1, states), (states,) * 2, (states, symbols)))
    rows, columns = np.nonzero(move)
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=states))]).astype(np.int64)
    matrix = hmm.SparseMatrix(ends, columns.astype(np.int32), move[rows, columns]) if sparse else move
    names = [f"s{n}" for n in range(states)], [f"o{n}" for n in range(symbols)]
    return hmm.build_model(start[0], matrix, emit, *names)


def stochastic(rng: np.random.Generator, shape: tuple[int, ...], zeros: float) -> Any:
    """Return rows that sum to one."""
    table = rng.random(shape) * (rng.random(shape) >= zeros)
    table[np.arange(shape[0]), rng.integers(0, shape[1], shape[0])] += 0.1
    return table / table.sum(axis=1, keepdims=True)


def words_of(symbols: int, count: int, longest: int) -> pa.Table:
    """Return sequences of many lengths, some steps unobserved, one sequence empty, one missing, one with no symbol."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(-1, symbols, length).tolist() for length in rng.integers(1, longest, count)]
    words = [[f"o{s}" if s >= 0 else None for s in each] for each in drawn]
    return pa.table({"case_id": [f"c{n}" for n in range(count + 3)], "words": pa.array([*words, [], ["uno"], None])})


def decoded(model: Any, table: pa.Table, *words: str, options: Sequence[str] = (*ALONE, *ENOUGH)) -> Outputs:
    """Return paths and posteriors of sequences."""
    hmm.write_model(model, "model.parquet")
    parquet.write_table(table, "words.parquet")
    kinds = {"viterbi": (), "posteriors": ("--posteriors",)}
    found = {}
    for kind, asked in kinds.items():
        command("viterbi", "model.parquet", "words.parquet", "-o", kind, *asked, *words, *options)
        found |= {f"{kind} {name}": output for name, output in left_by(Path(kind), kind).items()}
    return found


@each_precision("sequences")
def _sequences(_: Path, precision: str) -> Outputs:
    return decoded(machine(), words_of(3, 40, 30), "--precision", precision, "--partition-rows", "20")


@job("sequences-sparse")
def _sparse(_: Path) -> Outputs:
    return decoded(machine(40, 5, 0.9, sparse=True), words_of(5, 20, 15))


@job("sequences-spilled")
def _sequences_spilled(folder: Path) -> Outputs:
    options = (*ALONE, "--memory", "1MiB", "--spill", str(folder))
    return decoded(machine(30, 4, 0.3), words_of(4, 6, 900), options=options)


@job("sequences-likelihoods")
def _likelihoods(_: Path) -> Outputs:
    rng = np.random.default_rng(5)
    bare = machine(5, 3, 0.2)
    model = hmm.build_model(bare.start, bare.transition)
    logs = np.where(rng.random((20, 5)) < 0.2, -math.inf, rng.normal(size=(20, 5)))
    words = [logs[first : first + length].tolist() for first, length in ((0, 4), (4, 9), (13, 1), (14, 6))]
    return decoded(model, pa.table({"words": pa.array(words)}))


@job("sequences-slices")
def _slices(_: Path) -> Outputs:
    slices = hmm.from_slices(junctor.read_network(DATA / "umbrella.bif"))
    hmm.write_model(slices, "model.json")
    asked = [[0, 1, 1], [0], [1, None, 0]]
    tables = {"paths": hmm.viterbi(slices, asked), "smoothed": hmm.posteriors(slices, asked)}
    return {**tables, "model": Path("model.json").read_text()}


@each_precision("sequences-gpu", ("double", "single"), slow=True)
def _sequences_gpu(_: Path, precision: str) -> Outputs:
    options = (*HERE, "--workers", "0", *ENOUGH, "--device", "gpu")
    with stand_in.sequence_gpu():
        return decoded(machine(9, 3), words_of(3, 6, 5), "--precision", precision, options=options)


# Joint posteriors, and clique tables that are kept.


@job("joint-messages")
def _joint_messages(_: Path) -> Outputs:
    return joint("messages")


@job("joint-stored")
def _joint_stored(_: Path) -> Outputs:
    return joint("stored")


def joint(architecture: str) -> Outputs:
    """Return joint posteriors, in every precision."""
    words = ("joint", chest(), "lung,smoke", "either,xray", "asia", "--given", "dysp=yes", "--given", "tub=no")
    words = (*words, *ENOUGH, "--architecture", architecture, "--json", "--precision")
    network = random_network(15, seed=6)
    # Members of one table share a clique.
    scopes = [network.factors[n].scope for n in (14, 9, 3)]
    pairs = [[network.variables[v].name for v in scope if v != 5] for scope in scopes]
    given = {"x_5": network.variables[5].states[0]}
    found = junctor.joint_posteriors(network, pairs, given, architecture=architecture, memory="1GiB")
    random = {f"random {n}": np.asarray(each) for n, each in enumerate(found.posteriors)}
    return {**{each: cleaned(json.loads(command(*words, each))) for each in PRECISIONS}, **random}


@job("joint-auto")
def _joint_auto(_: Path) -> Outputs:
    words = ("joint", chest(), "lung,smoke", "xray,dysp", *ENOUGH)
    return {"chosen": json.loads(command(*words, "--json"))["architecture"], "printed": command(*words)}


@each_precision("cliques-kept")
def _kept(_: Path, precision: str) -> Outputs:
    words = ("calibrate", chest(), "--keep-cliques", "kept", "--given", "dysp=yes", "--given", "smoke=no", *ENOUGH)
    made = json.loads(command(*words, "--precision", precision, "--json"))
    asked = {names: json.loads(command("ask", "kept", *names.split(), "--json")) for names in ("lung", "either lung")}
    return {"calibrated": cleaned(made), **cleaned(asked), "printed": command("ask", "kept", "lung", "either")}


@job("cliques-gpu", slow=True)
def _cliques_gpu(_: Path) -> Outputs:
    network = grid(4, 4, 3, seed=1)
    said = {"x_0_0": [1.0, 0.0, 0.0], "x_1_2": [0.2, 0.5, 0.9]}
    sizes = ("16MiB", "24KiB")
    return {size: stand_in.stored_on_gpu(network, said, size, ("x_1_1", "x_1_2")) for size in sizes}


# Runs that go on.


@job("resumed-run")
def _resumed(_: Path) -> Outputs:
    words = ("run", chest(), "chest.csv", "--partition-rows", "2")
    return gone_on(lambda: answered(*words), "posteriors")


@job("resumed-sampling")
def _resumed_sampling(_: Path) -> Outputs:
    how = ("--method", "sampling", "--samples", "500", "--seed", "2", "--partition-rows", "2")
    return gone_on(lambda: answered("run", chest(), "chest.csv", *how), "posteriors")


@job("resumed-sequences")
def _resumed_sequences(_: Path) -> Outputs:
    hmm.write_model(machine(), "model.parquet")
    parquet.write_table(words_of(3, 20, 9), "words.parquet")
    words = ("viterbi", "model.parquet", "words.parquet", "--partition-rows", "9")
    return gone_on(lambda: answered(*words, folder="viterbi"), "viterbi")


def gone_on(again: Callable[[], Outputs], folder: str) -> Outputs:
    """Return what a run gives that lost its second part, the way an interruption leaves it, and then goes on."""
    first = again()
    kept = {path: path.read_bytes() for path in (Path("out") / folder).iterdir()}
    lost = Path("out") / folder / "part-00001.parquet"
    lost.unlink()
    Path("out/manifest.json").unlink()
    found = again()
    same = {path.name: path.read_bytes() == content for path, content in kept.items()}
    return {**found, "the same": same, "equal answers": found["answers"].equals(first["answers"])}


@job("resumed-old-run")
def _old_run(folder: Path) -> Outputs:
    return old_run(folder)


def old_run(folder: Path) -> Outputs:
    """Return what the run gives that was interrupted when this record was made, and goes on now."""
    shutil.copytree(OLD_RUN, folder, dirs_exist_ok=True)
    spec = Path("out/run.json")
    # Another version starts afresh, and says so: here the numbers are asked for, not that.
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "junctor_version": junctor.__version__}))
    return answered("run", *OLD_JOB)


OLD_JOB = ("network.bif", "evidence.csv", "--partition-rows", "3")


# Files of networks and of evidence.


@job("networks-converted")
def _converted(_: Path) -> Outputs:
    found: dict[str, Any] = {}
    for source in sorted([*DATA.glob("*.bif"), *DATA.glob("*.uai")]):
        for target in ("bif", "uai", "parquet"):
            name = f"{source.stem}.{target}"
            if source.suffix == ".uai" and target == "bif":
                found[name] = refusal("convert", str(source), name, code=3)
                continue
            command("convert", str(source), name)
            if target != "parquet":
                found[name] = Path(name).read_text()
            found[f"{name} digest"] = junctor.read_network(name).digest
    return found


@job("networks-read")
def _read(_: Path) -> Outputs:
    found = {}
    for name, text in stand_in.network_files().items():
        Path(name).write_bytes(text)
        Path(f"{name}.gz").write_bytes(gzip.compress(text))
        found[name] = [junctor.read_network(each).digest for each in (name, f"{name}.gz")]
        found[f"{name} facts"] = cleaned(json.loads(command("validate", name, "--json")))
    return found


@job("networks-generated")
def _generated(_: Path) -> Outputs:
    made = [
        grid(4, 5, (2, 4), seed=1),
        chain(9, 3, seed=2),
        layered(4, 4, seed=3),
        random_network(12, seed=4, zeros=0.3),
    ]
    found: dict[str, Any] = {each.name: each.digest for each in made}
    for pattern in ("fixed", "missing", "random"):
        found[pattern] = evidence_table(made[2], sample(made[2], 50, seed=5), 0.4, pattern, seed=6)  # type: ignore[arg-type]
    return found


@job("evidence-formats")
def _evidence(_: Path) -> Outputs:
    network, source = files(random_network(10, seed=7), 12, 0.5)
    table = parquet.read_table(source)
    text = table.to_pandas().astype(object).to_csv(index=False)
    Path("t.csv").write_text(text)
    Path("t.csv.gz").write_bytes(gzip.compress(text.encode()))
    Path("t.tsv").write_text(text.replace(",", "\t"))
    with ipc.new_file("t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    Path("many").mkdir()
    for part in range(2):
        parquet.write_table(table.slice(6 * part, 6), f"many/{part}.parquet")
    found = {}
    for name in (source, "t.csv", "t.csv.gz", "t.tsv", "t.arrow", "many"):
        found[name] = answered("run", network, name, "--overwrite", "--targets", "x_0,x_9")["answers"]
    return found


@job("evidence-uai")
def _evid(_: Path) -> Outputs:
    Path("several.evid").write_text("2\n1 0 1\n2 1 0 3 1\n")
    Path("one.evid").write_text("2 0 1 2 0\n")
    network = str(DATA / "misconception.uai")
    return {name: answered("run", network, name, "--overwrite")["answers"] for name in ("several.evid", "one.evid")}


@job("mistakes")
def _mistakes(folder: Path) -> Outputs:
    network = chest()
    Path("extra.csv").write_text("smoke,weather\nyes,fine\n")
    Path("half.bif").write_text("network half { } variable a { type discrete [ 2 ]")
    run = ("run", network, "chest.csv", "-o", "out", *ALONE)
    return {
        "target": refusal(*run, *ENOUGH, "--targets", "lungs", code=3),
        "strict": refusal(*run, *ENOUGH, "--strict", code=3),
        "extra": refusal("run", network, "extra.csv", "-o", "out", *ALONE, *ENOUGH, code=3),
        "passed over": answered("run", network, "extra.csv", "--ignore-extra")["answers"],
        "another run": refusal(*run, *ENOUGH, code=6).replace(str(folder), "."),
        "network": refusal("validate", "half.bif", code=3),
        "rows": cleaned(json.loads(command("validate", network, "chest.csv", "--json", code=3))),
        "idle": refusal(*run, *ENOUGH, "--samples", "5000", code=2),
    }


# What is planned.


def inspected(*words: str) -> Any:
    """Return what `junctor inspect` says, without seconds."""
    return cleaned(json.loads(command("inspect", *words, "--disk", "1GiB", "--json")))


CPU = ("--device", "cpu", *ENOUGH)


@job("plans-chest")
def _plans_chest(_: Path) -> Outputs:
    network = chest()
    explained = inspected(network, "chest.csv", *CPU, "--query", "mpe")
    return {"posteriors": inspected(network, "chest.csv", *CPU), "mpe": explained}


@each_precision("plans-patterns")
def _plans_patterns(_: Path, precision: str) -> Outputs:
    words = files(random_network(30, seed=3), 300, pattern="random")
    return {"plans": inspected(*words, *CPU, "--precision", precision, "--targets", "x_29,x_3")}


@job("plans-missing")
def _plans_missing(_: Path) -> Outputs:
    found = inspected(*files(layered(6, 6, (2, 4), seed=2), 40_000), *CPU)
    # Rows of a shared tree take whole vectors, which machines have of 32 or 64 bytes.
    for content in (found["evidence"], *found["evidence"]["plans"]):
        del content["needed_bytes"], content["planned_bytes"]
    return {"plans": found}


@job("plans-row-trees")
def _plans_row_trees(_: Path) -> Outputs:
    with stand_in.compiled(Strategy.ROW_TREES):
        return {"plans": inspected(*files(chain(300, 4, seed=3), 90, 0.3, "random"), *CPU)}


@job("plans-chunks")
def _plans_chunks(_: Path) -> Outputs:
    words = lattice(9)
    little = inspected(*words, "--device", "cpu", "--memory", "4MiB")
    return {"memory": little, "tasks": inspected(*words, *CPU, "--device-memory", "8KiB")}


@job("plans-refused")
def _plans_refused(_: Path) -> Outputs:
    return {"plans": inspected(*lattice(8), "--device", "cpu", "--memory", "200KiB")}


@job("plans-workers", slow=True)
def _plans_workers(_: Path) -> Outputs:
    return {"plans": inspected(*lattice(10), *CPU, "--device-memory", "16KiB", "--workers", "3")}


@job("plans-gpu")
def _plans_gpu(_: Path) -> Outputs:
    gpu = ("--device", "gpu", *ENOUGH)
    with stand_in.no_gpu():
        rows = inspected(*files(layered(6, 6, (2, 4), seed=2), 5000), *gpu, "--precision", "single")
        return {"rows": rows, "chunks": inspected(*lattice(9), *gpu, "--device-memory", "1MiB")}
