"""XML as a plain tree in which every element and every number has its line and column.

Main functions: `parse_xml` and `escaped`; called by the readers and writers of XMLBIF, XDSL and OpenMarkov files.
Entities are refused (billion laughs attacks).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import ParseError

import numpy as np
import numpy.typing as npt
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from junctor.formats.files import decode_xml
from junctor.formats.numbers import BadNumber, note_lost, parse_numbers, shown
from junctor.model.errors import ModelError, Place
from junctor.model.network import Reading

# Network files nest four or five elements deep; a limit keeps damaged or hostile files from deep recursion.
MAX_DEPTH = 100

_DECLARATION = re.compile(r"(\s*)<\?(xml)\s[^>]*\?>", re.I)
# aGrUM wrote comments like this for a while.
_HALF_COMMENT = re.compile(r"<!-(?!-)[^<>]*(?<!-)->")


@dataclass(slots=True)
class Element:
    """An XML element. Names of tags and attributes are in lower case and without their namespace prefix."""

    tag: str
    attributes: dict[str, str]
    place: Place
    children: list[Element] = field(default_factory=list)
    # Pieces of text with line and column, as expat reports them; the text of children is not among them.
    pieces: list[tuple[str, int, int]] = field(default_factory=list)
    # Takes up notes of numbers.
    reading: Reading | None = None

    @property
    def text(self) -> str:
        """All text of the element itself, without surrounding white space."""
        return "".join(piece for piece, _, _ in self.pieces).strip()

    def all(self, *tags: str) -> Iterator[Element]:
        """Yield the children with one of these tags."""
        return (child for child in self.children if child.tag in tags)

    def only(self, tag: str) -> Element:
        """Return the one child with this tag; raises ModelError if there is none or a second one."""
        child = self.optional(tag)
        if child is None:
            raise ModelError(f"<{self.tag}> has no <{tag}>, expected one", self.place)
        return child

    def optional(self, tag: str) -> Element | None:
        """Return the child with this tag or None; raises ModelError if there is a second one."""
        children = list(self.all(tag))
        if len(children) > 1:
            raise ModelError(f"<{self.tag}> has a second <{tag}>, expected one", children[1].place)
        return children[0] if children else None

    def attribute(self, name: str) -> str:
        """Return an attribute's value; raises ModelError if it is missing or empty."""
        value = self.attributes.get(name, "").strip()
        if not value:
            raise ModelError(f'<{self.tag}> has no {name}, expected {name}="..."', self.place)
        return value

    def numbers(self) -> npt.NDArray[np.float64]:
        """Return the numbers in the text; raises ModelError at the first word that is not one."""
        text = "".join(piece for piece, _, _ in self.pieces)
        lost: list[str] = []
        try:
            numbers = parse_numbers(text, lost)
        except BadNumber as bad:
            hint = ", with a decimal point and spaces between numbers" if "," in bad.word else ""
            raise ModelError(
                f"found {shown(bad.word)} in <{self.tag}>, expected a number{hint}", self._place_of(bad.offset)
            ) from None
        if lost:
            note_lost(lost, self._place_of(text.index(lost[0])), self.reading)
        return numbers

    def _place_of(self, offset: int) -> Place:
        starts = [0]
        for piece, _, _ in self.pieces:
            starts.append(starts[-1] + len(piece))
        i = bisect.bisect_right(starts, offset) - 1
        _, line, column = self.pieces[i]
        return Place(self.place.file, line, column + offset - starts[i])


def parse_xml(data: bytes, file: str | None, reading: Reading | None = None) -> Element:
    """Return the root element; raises ModelError, with the place, for anything that is not plain, well-formed XML.

    An inline DTD is skipped; entity definitions and external references are refused. Elements take notes of their
    numbers into `reading`.
    """
    text = _mended(decode_xml(data, file))
    builder = _Builder(file, reading)
    parser = DefusedXMLParser(target=builder, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    builder.expat = parser.parser
    # Buffered text would come with the place of its end.
    parser.parser.buffer_text = False
    try:
        parser.feed(text)
        parser.close()
    except ParseError as error:
        raise _not_well_formed(text, error, file) from None
    except DefusedXmlException:
        raise ModelError(
            "the file defines XML entities or refers to other files, which is not accepted; expected plain XML",
            builder.here(),
        ) from None
    except UnicodeEncodeError:
        raise ModelError("the file has characters that no XML can hold", Place(file)) from None
    assert builder.root is not None
    return builder.root


# Characters that no XML can hold, and those that readers take for another or drop.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028]")


def escaped(name: str, format: str) -> str:
    """Return a name as XML text or as an attribute's value; raises ModelError for one that would not read back.

    name: of a variable or state.
    format: name of the format in errors.
    """
    bad = _UNWRITABLE.search(name)
    if bad or name != name.strip():
        found = repr(bad[0]) if bad else "white space at an end"
        raise ModelError(f"the name {name!r} has {found}, which {format} cannot express: write UAI or Parquet")
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def safe_title(title: str) -> str:
    """Return the title of a network with underscores for what XML cannot hold."""
    return _UNWRITABLE.sub("_", title).strip()


def _mended(text: str) -> str:
    """Blank out what tools write but expat refuses: `<?XML ...?>` (JavaBayes), a late `<?xml ...?>`, `<!- ... ->`."""
    declaration = _DECLARATION.match(text)
    if declaration and (declaration[1] or declaration[2] != "xml"):
        text = _blanked(declaration) + text[declaration.end() :]
    return _HALF_COMMENT.sub(_blanked, text) if "<!-" in text else text


def _blanked(match: re.Match[str]) -> str:
    # Spaces instead of nothing: lines and columns of the rest stay as they are.
    return re.sub(r"[^\n]", " ", match[0])


def _not_well_formed(text: str, error: ParseError, file: str | None) -> ModelError:
    line, column = error.position
    lines = text.split("\n")
    rest = lines[line - 1][column:].strip() if line <= len(lines) else ""
    found = f"found {shown(rest)}" if rest else "found the end of the line or file"
    # The message of expat ends in its own line and column.
    reason = str(error).rpartition(":")[0]
    return ModelError(f"{found}, expected well-formed XML ({reason})", Place(file, line, column + 1))


class _Builder:
    """Target of the XML parser: builds the tree of elements from its events."""

    def __init__(self, file: str | None, reading: Reading | None) -> None:
        self.file = file
        self.reading = reading
        self.expat: object = None
        self.root: Element | None = None
        self._open: list[Element] = []

    def here(self) -> Place:
        return Place(self.file, *self._position())

    def _position(self) -> tuple[int, int]:
        return self.expat.CurrentLineNumber, self.expat.CurrentColumnNumber + 1  # type: ignore[attr-defined]

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        plain = {_plain(name): value for name, value in attributes.items()}
        element = Element(_plain(tag), plain, self.here(), reading=self.reading)
        if len(self._open) >= MAX_DEPTH:
            raise ModelError(f"elements are nested deeper than {MAX_DEPTH}, expected a network", element.place)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, tag: str) -> None:
        self._open.pop()

    def data(self, text: str) -> None:
        if self._open:
            self._open[-1].pieces.append((text, *self._position()))

    def comment(self, text: str) -> None:
        # A comment between two numbers separates them.
        self.data(" ")

    def close(self) -> None:
        pass


def _plain(name: str) -> str:
    return name.rpartition("}")[2].lower()
