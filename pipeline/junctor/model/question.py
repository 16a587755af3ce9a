"""What is asked of every row, whatever its names. Main class: Question, a record in a module of `junctor.questions`."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from junctor.model.errors import EvidenceError

if TYPE_CHECKING:
    from junctor.model.network import Network

# Of options, and names of modules. What a row of posteriors shows of each target is a question of its own.
QueryKind = Literal["posteriors", "mpe"]
AnswerKind = Literal["posteriors", "scores"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a question needs of a strategy.

    semiring: sums of products, or maxima of them.
    reads: a table of each target, by messages up and down; or states, traced back from maxima that went up alone.
    """

    semiring: Literal["sum", "max"]
    reads: Literal["targets", "traceback"]


MARGINALS, EXPLANATIONS = Needs("sum", "targets"), Needs("max", "traceback")
EVERY_NEED = frozenset({MARGINALS, EXPLANATIONS})


@dataclass(frozen=True, slots=True)
class Question:
    """A question; what does a part of it in layers above is named as `module:name`, and imported where it is asked for.

    name: in options, and of the folder of the answers.
    plural: its answers, for people.
    needs: of a strategy, which writes posteriors or states.
    network: returns the network that answers it, by the one asked and the names of the targets, None for all; its first
        variables are the same. Raises EvidenceError for targets that it has no answer to.
    added: variables that `network` adds, whose posteriors are answered in place of those of the targets.
    maker: makes the answers of posteriors, slice by slice, as `ScoreMaker` does; None where these are the answers.
    has_top: whether a number of states, and probabilities of some, can be asked for.
    tables: makes tables of the answers: `AnswerTables` or a class of it.
    log_column: name of the column of logarithms.
    compression: of columns.
    least_rows: of a part of exact answers, as far as their bytes allow.
    counted: what statistics and pages show of each target: posteriors, its best state and their posteriors, or states.
    """

    name: str
    plural: str
    needs: Needs = MARGINALS
    network: Callable[[Network, tuple[str, ...] | None], Network] = lambda network, targets: network
    added: tuple[str, ...] = ()
    maker: str | None = None
    has_top: bool = False
    tables: str = "junctor.runs.results:AnswerTables"
    log_column: str = "log_evidence"
    compression: Literal["zstd", "lz4"] = "zstd"
    least_rows: int = 0
    counted: Literal["posteriors", "best", "states"] = "posteriors"

    @property
    def explains(self) -> bool:
        """True if rows get the states of a maximum."""
        return self.needs.reads == "traceback"

    @property
    def is_sampled(self) -> bool:
        """Whether samples answer it, which estimate posteriors."""
        return self.needs == MARGINALS

    def refuse_taken(self, names: Container[str]) -> None:
        """Raise EvidenceError for a network with variables of the names that it adds."""
        for name in self.added:
            if name in names:
                raise EvidenceError(f"the network has a variable {name!r}, which {self.plural} add: rename it")


def question_name(kind: str, answers: str) -> str:
    """Return the name of what a query of a kind asks."""
    return answers if kind == "posteriors" else kind


@cache
def question_of(name: str) -> Question:
    """Return the question of a name: the QUESTION of its module."""
    found: Question = import_module(f"junctor.questions.{name}").QUESTION
    return found
