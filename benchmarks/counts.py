"""Exact counts of plans: what one case costs, without measuring any time. Tracked in tests/baseline.json.

    uv run python benchmarks/counts.py [NETWORK_OR_FOLDER ...] [--update] [--savings]

Counts the textbook networks of the project, and the network files named or in the folders named, with a fifth of the
variables observed and with none, and prints what differs from the baseline; `--update` writes the counts there.
`--savings` prints what each saving of the plans is worth instead.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable
from pathlib import Path

from junctor.formats import read_network
from junctor.planning.compile import compile_plan
from junctor.planning.savings import count_savings
from junctor.planning.shape import Pattern, Shape, shape_of

ROOT = Path(__file__).parents[1]
BASELINE = ROOT / "tests" / "baseline.json"
# Plans for a single case: no search for a better order, so that the test of all networks takes seconds.
ROWS = 1
OBSERVED = 0.2

Counts = dict[str, int]


def pattern_of(shape: Shape, seed: int = 1) -> Pattern:
    """Return a fifth of the variables, at random but always the same."""
    variables = range(len(shape.cardinalities))
    sliced = random.Random(seed).sample(variables, max(1, int(OBSERVED * len(variables))))
    return Pattern(frozenset(sliced), frozenset())


def counts(path: Path) -> dict[str, Counts]:
    """Return the counts of a network file's plans, by evidence."""
    shape = shape_of(read_network(str(path)))
    return {
        "a fifth observed": plan_counts(shape, pattern_of(shape)),
        "nothing observed": plan_counts(shape, Pattern(frozenset(), frozenset())),
    }


def plan_counts(shape: Shape, pattern: Pattern) -> Counts:
    """Return the counts of one plan, each of them better lower."""
    plan = compile_plan(shape, pattern, rows=ROWS)
    return {
        "case_operations": plan.case_operations,
        "shared_operations": plan.shared_operations,
        "clique_entries": plan.total_clique_entries,
        "peak_case_entries": plan.peak_case_entries(),
        "steps": len(plan.steps),
    }


def changes(before: Counts, after: Counts) -> list[str]:
    """Return what changed, each with both counts and by how much."""
    return [
        f"{name} {before[name]:,} -> {count:,} ({(count - before[name]) / max(1, before[name]):+.1%})"
        for name, count in after.items()
        if count != before[name]
    ]


def read_baseline() -> dict[str, dict[str, Counts]]:
    """Return the committed counts: network -> evidence -> counts."""
    found: dict[str, dict[str, Counts]] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    return found


def network_files(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the files by the name that the baseline has for them: folder and file."""
    found = [
        each
        for path in paths
        for each in (sorted([*path.glob("*.bif*"), *path.glob("*.uai")]) if path.is_dir() else (path,))
    ]
    return {f"{path.resolve().parent.name}/{path.name}": path for path in found}


def print_savings(paths: Iterable[Path]) -> None:
    """Print by which factor a case costs more without each saving, a fifth of the variables observed."""
    for i, path in enumerate(paths):
        shape = shape_of(read_network(str(path)))
        found = count_savings(shape, pattern_of(shape), rows=ROWS)
        if i == 0:
            print(f"| network | operations a case | {' | '.join(each.name for each in found)} |")
            print(f"|---|---:|{'---:|' * len(found)}")
        factors = " | ".join(f"{each.before / max(1, each.after):.3g}" for each in found)
        print(f"| {path.name.split('.')[0]} | {found[0].after:,} | {factors} |", flush=True)


def main() -> None:
    """Count, print what changed, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", type=Path)
    parser.add_argument("--update", action="store_true", help="write the counts to the baseline")
    parser.add_argument("--savings", action="store_true", help="print what each saving is worth, as factors")
    options = parser.parse_args()
    if options.savings:
        print_savings(network_files(options.networks).values())
        return
    baseline = read_baseline()
    for name, path in network_files([ROOT / "data", *options.networks]).items():
        found = counts(path)
        for evidence, each in found.items():
            for change in changes(baseline[name][evidence], each) if name in baseline else ["not in the baseline yet"]:
                print(f"{name}, {evidence}: {change}")
        baseline[name] = found
    if options.update:
        BASELINE.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
