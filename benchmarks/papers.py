"""Tables, figures and claims of the papers that this project builds on, each by one command.

    uv run python benchmarks/papers.py                            all of them
    uv run python benchmarks/papers.py bistaffa table2            one of them, on networks of the folder
                                                                  BENCHMARK_NETWORKS or, without, of data/
    uv run python benchmarks/papers.py bistaffa table2 FILE ...   on these network files
    uv run python benchmarks/papers.py bistaffa table2 --small    in seconds

Without a GPU an item shows what a CPU can, and a line says what was left out; one that needs a GPU throughout says so
and ends with exit code 2. Figures of the papers beside ours: docs/papers.md.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import NamedTuple

from common import Asked, gpu_here, need_gpu
from junctor.model.errors import JunctorError

EVERYTHING = "everything"


class Item(NamedTuple):
    """A table, figure or claim of a paper.

    function: module of this folder and function, which takes an `Asked`.
    gpu: what of it needs a GPU, or EVERYTHING.
    networks: whether it is about network files, which may be named.
    """

    paper: str
    name: str
    shows: str
    function: str
    gpu: str = ""
    networks: bool = True


ITEMS = (
    Item("bistaffa", "table1", "Table I: cliques and separators of eight networks", "stored:paper_table_one"),
    Item(
        "bistaffa",
        "table2",
        "Table II: preprocessing, transfers, kernels, CPU, speed-ups",
        "stored:paper_table_two",
        "preprocessing on the device, transfers, kernels, speed-ups",
    ),
    Item(
        "bistaffa",
        "gains",
        "+59 to +594 % over Zheng and Mengshoel, by both tables",
        "stored:paper_gains",
        networks=False,
    ),
    Item("bistaffa", "swaps", "three swaps a table, ten times faster than the naive way", "stored_swaps:claims"),
    Item(
        "bistaffa",
        "proposition2",
        "Proposition 2: |S| / 2 swaps at most",
        "stored_swaps:proposition_two",
        networks=False,
    ),
    Item(
        "bistaffa",
        "examples",
        "worked examples of equation 1 and Proposition 1",
        "stored_swaps:examples",
        networks=False,
    ),
    Item("bistaffa", "pipelines", "+50 and +75 % by pipelined transfers", "stored:paper_pipelines", EVERYTHING, False),
    Item("zheng", "formulas", "equations 5 and 6: settings by them and by ours", "launch_paper:formulas"),
    Item(
        "zheng",
        "figure2",
        "Figure 2: three surfaces of a reduction",
        "launch_paper:figure_two",
        "measured surfaces",
        False,
    ),
    Item(
        "zheng",
        "table3",
        "Table 3: RSS, SD and MR of Lasso and SVR",
        "launch_paper:table_three_of",
        "times of messages, where --folder has none",
    ),
    Item(
        "zheng",
        "figures4-6",
        "Figures 4 to 6: surfaces, measured and by SVR and Lasso",
        "launch_paper:figures_four_to_six",
        "measured surfaces, and times of messages, where --folder has none",
    ),
    Item(
        "zheng",
        "table4",
        "Table 4: ms of a propagation with each way to choose settings",
        "launch_paper:table_four_of",
        "all times of ours",
    ),
    Item("zheng", "figure7", "Figure 7: Table 4 as bars", "launch_paper:figure_seven", "the figure of ours"),
    Item("zheng", "means", "10.70 and 8.68: means of speed-ups", "launch_paper:means", networks=False),
    Item("lee", "paths", "Algorithm 1: its paths beside ours", "hmm_paper:paths", networks=False),
    Item(
        "lee", "readings", "Algorithms 2 to 4: the text and the printed indices", "hmm_paper:readings", networks=False
    ),
    Item("lee", "figure6", "Figure 6: versions 1 and 2 by states, 8 times", "hmm_paper:figure_six", "version 2", False),
    Item(
        "lee",
        "figure8",
        "Figure 8: all versions by states; 7, 5.6 and 300 times",
        "hmm_paper:figure_eight",
        "versions 2 to 4",
        networks=False,
    ),
    Item("lee", "appendix2", "Appendix 2: time by length of a sequence", "hmm_paper:appendix_two", "version 4", False),
    Item("yu", "table1", "Table I: networks and evidence", "sampling_paper:table_one"),
    Item("yu", "figure5", "Figure 5: average MSE of AIS-BN", "sampling_paper:figure_five", "columns of the GPU"),
    Item("yu", "figure6", "Figure 6: average MSE of SIS", "sampling_paper:figure_six", "columns of the GPU"),
    Item("yu", "table3", "Table III: times and speed-ups", "sampling_paper:table_three", "simple, wavefront, ratios"),
    Item("yu", "figure7", "Figure 7: time by concurrent samples", "sampling_paper:figure_seven", EVERYTHING),
    Item("yu", "figure8", "Figure 8: time by threads of a group", "sampling_paper:figure_eight", EVERYTHING),
    Item("yu", "table4", "Table IV: profile, by PyTorch's", "sampling_paper:table_four", EVERYTHING),
    Item("yu", "table5", "Table V: fetches that an order of states saves", "sampling_paper:table_five"),
    *(
        Item("satish", name, shows, f"grids_paper:{function}", gpu, networks=False)
        for name, shows, function, gpu in (
            ("table1", "Table 1: flops and memory accesses of twelve grids", "table_one", ""),
            ("figure7", "Figure 7: speed-up of a GPU; flops a second", "figure_seven", "GPU, ratios"),
            ("figure8", "Figure 8: shares of stages", "figure_eight", "stages of the GPU"),
            ("figure9", "Figure 9: share of large updates", "figure_nine", ""),
            ("consecutive", "3.4 times by consecutive access on a CPU", "consecutive", ""),
            ("exponentials", "4 times without exp and log on a CPU", "exponentials", ""),
        )
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", nargs="?", choices=list(dict.fromkeys(item.paper for item in ITEMS)))
    parser.add_argument("item", nargs="?", help="without one: the items of the paper")
    parser.add_argument("networks", nargs="*", type=Path, help="network files, or folders of BIF files")
    parser.add_argument("--small", action="store_true", help="sizes that take seconds")
    parser.add_argument("--folder", type=Path, default=Path(), help="of files that an item draws or keeps; this one")
    options = parser.parse_args()
    items = [item for item in ITEMS if options.paper in (None, item.paper)]
    if options.item is None:
        show(items)
        return
    chosen = {item.name: item for item in items}.get(options.item)
    if chosen is None:
        parser.error(f"found {options.item}, expected one of {', '.join(item.name for item in items)}")
    if options.networks and not chosen.networks:
        parser.error(f"{chosen.paper} {chosen.name} takes no networks, found {options.networks[0]}")
    if missing := [path for path in options.networks if not path.exists()]:
        parser.error(f"{missing[0]}: no such file or folder")
    try:
        run(chosen, Asked(tuple(options.networks), options.small, gpu_here(), options.folder))
    except JunctorError as error:
        parser.error(str(error))
    except ModuleNotFoundError as error:
        parser.error(f"{error.name} is not installed: uv run has what this project develops with, --with more")


def show(items: list[Item]) -> None:
    for item in items:
        needs = f" (a GPU: {item.gpu})" if item.gpu else ""
        print(f"papers.py {item.paper} {item.name}: {item.shows}{needs}")


def run(item: Item, asked: Asked) -> None:
    if item.gpu == EVERYTHING:
        need_gpu(f"{item.paper} {item.name}")
    module, function = item.function.split(":")
    getattr(importlib.import_module(module), function)(asked)
    if item.gpu and not asked.gpu:
        print(f"left out without an NVIDIA GPU and CuPy: {item.gpu}")


if __name__ == "__main__":
    main()
