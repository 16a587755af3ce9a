"""The networks in `data/` against the numbers published for them, and the script that generates more."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import junctor
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from helpers import oracle
from helpers.files import ROOT
from junctor.formats import read_network
from junctor.model.network import Network
from junctor.model.pumping_station import SENSORS

DATA = ROOT / "data"
NETWORKS = sorted([*DATA.glob("*.bif"), *DATA.glob("*.uai")])

# File, evidence, variable=state, published probability with the digits that were published.
PUBLISHED = [
    # Lauritzen and Spiegelhalter (1988), and the examples of gRain and Netica, which use their network.
    ("asia", "", "tub=yes", "0.0104"),
    ("asia", "", "lung=yes", "0.055"),
    ("asia", "", "bronc=yes", "0.45"),
    ("asia", "", "either=yes", "0.0648"),
    ("asia", "", "xray=yes", "0.110"),
    ("asia", "", "dysp=yes", "0.436"),
    ("asia", "xray=yes", "tub=yes", "0.0924"),
    ("asia", "xray=yes", "lung=yes", "0.489"),
    ("asia", "asia=yes dysp=yes", "tub=yes", "0.0878"),
    ("asia", "asia=yes dysp=yes", "lung=yes", "0.0995"),
    ("asia", "asia=yes dysp=yes", "bronc=yes", "0.8114"),
    # Russell and Norvig (2003), section 14.4.
    ("burglary", "JohnCalls=true MaryCalls=true", "Burglary=true", "0.284"),
    ("burglary", "JohnCalls=true", "Burglary=true", "0.016"),
    # Charniak (1991), page 53.
    ("dog", "light_on=true hear_bark=false", "family_out=true", "0.5"),
    # Pearl (1987), from the exact solution that his simulation is compared to.
    ("metastatic", "Coma=absent SevereHeadaches=present", "MetastaticCancer=present", "0.097"),
    ("metastatic", "", "BrainTumor=present", "0.08"),
    ("metastatic", "", "Coma=present", "0.32"),
    ("metastatic", "", "SevereHeadaches=present", "0.616"),
    # Stay or switch: 1/3 against 2/3.
    ("monty_hall", "Guess=door1 Opened=door3", "Prize=door1", "0.3333"),
    ("monty_hall", "Guess=door1 Opened=door3", "Prize=door2", "0.6667"),
    # The worked example in Kevin Murphy's tutorial (1998).
    ("sprinkler", "WetGrass=true", "Sprinkler=true", "0.4298"),
    ("sprinkler", "WetGrass=true", "Rain=true", "0.7079"),
    ("sprinkler", "WetGrass=true Rain=true", "Sprinkler=true", "0.1945"),
    # Koller and Friedman (2009), section 3.2.1.2.
    ("student", "", "Letter=l1", "0.502"),
    ("student", "Intelligence=i0", "Letter=l1", "0.389"),
    ("student", "Intelligence=i0 Difficulty=d0", "Letter=l1", "0.513"),
    ("student", "Grade=g3", "Intelligence=i1", "0.079"),
    ("student", "Grade=g3", "Difficulty=d1", "0.629"),
    ("student", "Letter=l0", "Intelligence=i1", "0.14"),
    ("student", "Grade=g3 SAT=s1", "Intelligence=i1", "0.578"),
    ("student", "Grade=g3 SAT=s1", "Difficulty=d1", "0.76"),
    ("student", "Grade=g2", "Intelligence=i1", "0.175"),
    ("student", "Grade=g2 Difficulty=d1", "Intelligence=i1", "0.34"),
    ("student", "Grade=g3 Difficulty=d1", "Intelligence=i1", "0.11"),
    # Russell and Norvig (2003), section 15.2: filtering on two days, smoothing of the first.
    ("umbrella", "Umbrella_1=true", "Rain_1=true", "0.818"),
    ("umbrella", "Umbrella_1=true Umbrella_2=true", "Rain_2=true", "0.883"),
    ("umbrella", "Umbrella_1=true Umbrella_2=true", "Rain_1=true", "0.883"),
]


def read(name: str) -> Network:
    [path] = [path for path in NETWORKS if path.stem == name]
    return read_network(path)


def states(network: Network, cells: str) -> dict[int, int]:
    """Read `A=x B=y` as variable -> state, both as numbers."""
    pairs = [cell.split("=") for cell in cells.split()]
    return {network.find(name): network.variables[network.find(name)].states.index(state) for name, state in pairs}


@pytest.mark.parametrize(("name", "evidence", "asked", "published"), PUBLISHED)
def test_published_posteriors(name: str, evidence: str, asked: str, published: str) -> None:
    network = read(name)
    _, posteriors = oracle.enumerate_posteriors(network, states(network, evidence), {})
    [(variable, state)] = states(network, asked).items()
    digits = len(published.partition(".")[2])
    assert posteriors[variable][state] == pytest.approx(float(published), abs=0.51 * 10**-digits)


@pytest.mark.parametrize(
    ("name", "evidence", "published"),
    [
        ("sprinkler", "WetGrass=true", 0.6471),  # Murphy (1998)
        (
            "student",
            "Intelligence=i1 Difficulty=d0 Grade=g2 SAT=s1 Letter=l0",
            0.004608,
        ),  # Koller and Friedman, 3.2.1.3
        ("burglary", "JohnCalls=true MaryCalls=true Alarm=true Burglary=false Earthquake=false", 0.00062811),
        ("dog", "light_on=true hear_bark=false", 0.0662351325),
        ("misconception", "", 7_201_840),  # Koller and Friedman, 4.2
    ],
)
def test_published_probabilities_of_evidence(name: str, evidence: str, published: float) -> None:
    network = read(name)
    log_evidence, _ = oracle.enumerate_posteriors(network, states(network, evidence), {})
    assert math.exp(log_evidence) == pytest.approx(published, rel=2e-5)


def test_most_probable_weather() -> None:
    """Russell and Norvig (2003), figure 15.5: rain on all days but the third, with message 0.0210 for the last day."""
    network = read("umbrella")
    umbrellas = [True, True, False, True, True]
    evidence = " ".join(f"Umbrella_{day}={str(seen).lower()}" for day, seen in enumerate(umbrellas, 1))
    value, [best] = oracle.enumerate_mpe(network, states(network, evidence), {})
    assert [network.variables[v].states[best[v]] == "true" for v in _rain(network)] == umbrellas
    # The book divides the first message by P(Umbrella_1) = 0.55 and sums over Rain_0 (0.5 in place of 0.5 x 0.7).
    assert math.exp(value) / 0.55 / 0.7 == pytest.approx(0.0210, abs=5e-5)


def _rain(network: Network) -> list[int]:
    return [network.find(f"Rain_{day}") for day in range(1, 6)]


def test_the_students_most_likely_agree_to_differ() -> None:
    """Koller and Friedman (2009), figure 4.2: the assignment (0, 1, 1, 0) has 5,000,000 of 7,201,840, or 0.69."""
    network = read("misconception")
    value, assignments = oracle.enumerate_mpe(network, {}, {})
    assert assignments == {(0, 1, 1, 0)}
    assert math.exp(value) == pytest.approx(5_000_000)


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.name)
def test_every_file_names_its_source(path: Path) -> None:
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert f"| `{path.name}` | {len(read_network(path).variables)} |" in readme
    if path.suffix == ".bif":
        comment = "".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("//"))
        assert any(f", {year}" in comment or f" {year}" in comment for year in range(1970, 2030))


def test_every_file_has_a_published_number() -> None:
    assert {path.stem for path in NETWORKS} == {name for name, *_ in PUBLISHED} | {"misconception"}


def test_the_folder_stays_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir() if path.is_file()) < 300_000


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make", DATA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("arguments", "output", "variables"),
    [
        ("grid --rows 3 --columns 4 --states 2-3", "grid.uai", 12),
        ("chain --length 7", "chain.bif", 7),
        ("layered --layers 3 --width 4 --zeros 0.1", "layered.bif", 12),
        ("random --variables 9 --seed 3", "random.bif", 9),
        ("casino --steps 5", "casino.bif", 10),
        ("plant", "plant.bif", 41),
    ],
)
def test_make_writes_networks(make: ModuleType, tmp_path: Path, arguments: str, output: str, variables: int) -> None:
    assert make.main([*arguments.split(), "--output", str(tmp_path / output)]) == 0
    assert len(read_network(tmp_path / output).variables) == variables


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
def test_make_writes_evidence(make: ModuleType, tmp_path: Path, suffix: str) -> None:
    network, output = tmp_path / "plant.bif", tmp_path / f"evidence{suffix}"
    assert make.main(["plant", "-o", str(network)]) == 0
    assert make.main(["evidence", str(network), "--rows", "70000", "--observed", "sensors", "-o", str(output)]) == 0
    if suffix == ".csv":
        evidence = pyarrow.csv.read_csv(output)
    elif suffix == ".arrow":
        with pa.ipc.open_file(output) as file:
            evidence = file.read_all()
    else:
        evidence = pyarrow.parquet.read_table(output)
    assert evidence.num_rows == 70_000
    assert set(evidence.column_names) == {"case_id", *SENSORS}


def test_make_says_what_is_wrong(make: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make.main(["evidence", str(tmp_path / "none.bif"), "-o", str(tmp_path / "out.csv")]) == 3
    assert "error: " in capsys.readouterr().err


def test_the_sample_of_evidence_is_that_of_the_readme() -> None:
    readme = (DATA.parent / "README.md").read_text()
    text = (DATA / "patients.csv").read_text()
    assert f"```csv\n{text}```" in readme
    table = junctor.posteriors(DATA / "asia.bif", pa.csv.read_csv(DATA / "patients.csv"), targets=["lung"])
    assert table["status"].to_pylist() == ["ok", "ok", "invalid"]
