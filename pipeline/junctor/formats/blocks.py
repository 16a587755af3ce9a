"""Text files of nested blocks and attributes, which Netica's DNET and GeNIe's DSL files are alike.

    bnet small { node a { kind = NATURE; states = (no, yes); probs = (0.4, 0.6); }; };

Main class: Block; `parse_blocks` is called by the readers `netica` and `dsl`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from junctor.formats.text import (
    VALUES_IN_BRACES,
    SourceText,
    TextBlock,
    Token,
    nests_as,
    numbers_in,
    parse,
    shortened,
    unquoted,
    without_comments,
)
from junctor.model.errors import ModelError, Place
from junctor.model.network import Reading

# The head of a block is one token, `node a`; a value goes to the semicolon, or to the braces of its own attributes.
_GRAMMAR = r"""
start: (block _END?)+
block: HEAD _LBRACE (attribute | block _END?)* _RBRACE
attribute: KEY _EQUALS VALUE? (_LBRACE (attribute | block _END?)* _RBRACE)? _END

HEAD: /[^\s={}();"][^={}();"]*+(?=\{)/
KEY: /[^\s={}();"]++(?=\s*+=)/
"""

# Names of the terminals in errors, in the order in which alternatives are listed.
_WORDS = {
    "HEAD": "the head of a block: node NAME {",
    "KEY": "an attribute",
    "$END": "the end of the file",
    "_EQUALS": "'='",
    "VALUE": "a value",
    "_LBRACE": "'{'",
    "_RBRACE": "'}'",
    "_END": "';'",
}
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_COMMENT = r"//[^\n]*+|/\*.*?\*/"
# An element of a list; brackets around it say how elements nest.
_ELEMENT = re.compile(_STRING + r'|[^\s,()"][^,()"]*+', re.DOTALL)
# Blocks within blocks beyond this depth hold no nodes: submodels are nested a few deep.
MAX_DEPTH = 100


@dataclass(frozen=True)
class Block:
    """A block, or the attributes in braces of one: its head, attributes and inner blocks."""

    source: SourceText
    block: TextBlock

    @property
    def kind(self) -> str:
        """The first word of its head, in lower case."""
        return self._head.split(maxsplit=1)[0].lower()

    @property
    def name(self) -> str:
        """What follows the first word of its head, without quotes."""
        return unquoted(self._head.partition(self._head.split(maxsplit=1)[0])[2])

    @property
    def place(self) -> Place:
        """Where it starts."""
        return self.source.place_of(self._head)

    @property
    def _head(self) -> Token:
        return self.block.tokens[0]

    @cached_property
    def _attributes(self) -> dict[str, list[TextBlock]]:
        found: dict[str, list[TextBlock]] = {}
        for attribute in self.block.all("attribute"):
            found.setdefault(attribute.tokens[0].lower(), []).append(attribute)
        return found

    def _attribute(self, key: str) -> TextBlock | None:
        """Return an attribute; raises ModelError for a second one, which GeNIe writes only of what is not read."""
        found = self._attributes.get(key, [])
        if len(found) > 1:
            raise ModelError(f"found a second {key!r}, expected one", self.source.place_of(found[1].tokens[0]))
        return found[0] if found else None

    def blocks(self, kind: str, outer: str = "") -> list[Block]:
        """Return the inner blocks of a kind, those within inner blocks of the kind `outer` among them, in order.

        Raises ModelError for blocks that are nested too deep.
        """
        return self._blocks(kind, outer, 0)

    def _blocks(self, kind: str, outer: str, depth: int) -> list[Block]:
        if depth > MAX_DEPTH:
            raise ModelError(f"blocks are nested deeper than {MAX_DEPTH}, expected a network", self.place)
        found: list[Block] = []
        for block in (Block(self.source, block) for block in self.block.all("block")):
            if block.kind == kind:
                found.append(block)
            elif block.kind == outer:
                found += block._blocks(kind, outer, depth + 1)
        return found

    def inner(self, key: str) -> Block | None:
        """Return the attributes in braces of an attribute, None where there is none of this name."""
        attribute = self._attribute(key)
        return Block(self.source, attribute) if attribute is not None else None

    def inners(self, key: str) -> list[Block]:
        """Return the attributes in braces of all attributes of a name."""
        return [Block(self.source, attribute) for attribute in self._attributes.get(key, [])]

    def value(self, key: str) -> Token | None:
        """Return the value of an attribute, None where it is missing or empty."""
        attribute = self._attribute(key)
        return attribute.tokens[1] if attribute is not None and len(attribute.tokens) > 1 else None

    def word(self, key: str) -> str:
        """Return the value of an attribute as one word without quotes, empty where it is missing."""
        value = self.value(key)
        return _plain(value) if value is not None else ""

    def place_of(self, key: str) -> Place:
        """Return the place of an attribute's value, or of the block where it has none."""
        value = self.value(key)
        return self.source.place_of(value) if value is not None else self.place

    def list(self, key: str) -> list[str]:
        """Return the elements of a list, nested or not, without quotes; raises ModelError for unbalanced brackets."""
        value = self.value(key)
        if value is None:
            return []
        self._check_brackets(value)
        return [_plain(element) for element in _ELEMENT.findall(value)]

    def numbers(self, key: str) -> npt.NDArray[np.float64]:
        """Return the numbers of a list, nested or not; raises ModelError for other words or unbalanced brackets."""
        value = self.value(key)
        if value is None:
            return np.empty(0)
        self._check_brackets(value)
        return numbers_in(self.source, value)

    def table(self, key: str, what: str, shape: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the entries of a table; raises ModelError as `numbers` does, and for brackets that say another shape.

        key: the attribute.
        what: the table in errors.
        shape: sizes of the parents, then of the child, which is the fastest.
        """
        numbers, value = self.numbers(key), self.value(key)
        rows, size = math.prod(shape[:-1]), shape[-1]
        # A wrong number of entries has an error of its own.
        if value is None or "(" not in value or numbers.size != rows * size:
            return numbers
        # Netica nests a pair for each parent, or writes one around all. A pair around each row says the shape as well.
        if not nests_as(value, shape) and not nests_as(value, (rows, size)):
            raise ModelError(
                f"{what}: the brackets of its {key} do not nest as {' x '.join(map(str, shape))}: expected one pair "
                "around the entries of each row, and one around the rows of each state of a parent",
                self.source.place_of(value),
            )
        return numbers

    def _check_brackets(self, value: Token) -> None:
        text = re.sub(_STRING, "", value)
        depth = 0
        for bracket in re.findall(r"[()]", text):
            depth += 1 if bracket == "(" else -1
            if depth < 0:
                break
        if depth != 0 or (text.strip()[:1] == "(") != (text.strip()[-1:] == ")"):
            raise ModelError(
                f"found {shortened(value)}, expected a list in balanced brackets", self.source.place_of(value)
            )


def _plain(element: str) -> str:
    text = element.strip()
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[:1] == '"' else text


def parse_blocks(text: str, file: str, kind: str, reading: Reading | None = None) -> Block:
    """Return the first block of a kind; raises ModelError with line and column where a text holds none.

    text, file: content and name of the file.
    kind: of the block.
    reading: takes up notes of numbers.
    """
    source = without_comments(text, file, _COMMENT, _STRING, {'"': "quote", "/*": "comment"}, reading)
    parsed = parse(_GRAMMAR + VALUES_IN_BRACES, source, _WORDS)
    blocks = [Block(source, block) for block in parsed.all("block")]
    for block in blocks:
        if block.kind == kind:
            return block
    raise ModelError(f"found the block {shortened(blocks[0].kind)!r}, expected {kind!r}", blocks[0].place)
