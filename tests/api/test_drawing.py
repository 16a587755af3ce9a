"""Pictures of networks: every variable, edge and probability is in them, and boxes stand apart."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import Element

import junctor
import pytest
from defusedxml.ElementTree import fromstring
from helpers import strategies
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from hypothesis import given
from junctor.formats import read_network
from junctor.generate import grid, random_network
from junctor.model.errors import EvidenceError, InputError, ModelError
from junctor.model.network import Network
from junctor.model.picture import BAR, BOX, Node, picture_of

SVG = "{http://www.w3.org/2000/svg}"


def boxes_of(document: Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of every box."""
    found = []
    for group in document.iter(f"{SVG}g"):
        x, y = map(float, re.findall(r"-?[\d.]+", group.attrib["transform"]))
        outline = next(group.iter(f"{SVG}rect"))
        found.append((x, y, x + float(outline.attrib["width"]), y + float(outline.attrib["height"])))
    return found


def lines_of(document: Element) -> list[Element]:
    return [path for path in document.iter(f"{SVG}path") if path.attrib.get("fill") == "none"]


@given(strategies.networks())
def test_every_variable_has_a_box_that_stands_apart_and_every_edge_a_line(network: Network) -> None:
    nodes = [Node(each.name, each.states, [1 / each.cardinality] * each.cardinality) for each in network.public]
    document = fromstring(picture_of(nodes, network.edges(), network.kind == "bayes"))
    boxes = boxes_of(document)
    assert len(boxes) == len(nodes)
    assert len(lines_of(document)) == len(network.edges())
    width, height = (float(document.attrib[name]) for name in ("width", "height"))
    for n, (left, top, right, bottom) in enumerate(boxes):
        assert min(left, top) >= 0
        assert right <= width
        assert bottom <= height
        for other in boxes[:n]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    if network.kind == "bayes":
        for parent, child in network.edges():
            assert boxes[parent][3] < boxes[child][1]


def test_bars_are_posteriors() -> None:
    asia = read_network(ASIA)
    document = fromstring(asia.draw({"smoke": "yes", "xray": "no"}).svg)
    row = junctor.posteriors(asia, [{"lung": None, "smoke": "yes", "xray": "no"}]).to_pylist()[0]
    for variable, group in zip(asia.variables, document.iter(f"{SVG}g"), strict=True):
        texts = [text.text for text in group.iter(f"{SVG}text")]
        bars = [float(rect.attrib["width"]) for rect in group.iter(f"{SVG}rect")][2::2]
        assert texts[0] == variable.name
        assert texts[1::2] == list(variable.states)
        assert texts[2::2] == [f"{share:.1%}" for share in row[variable.name]]
        assert bars == pytest.approx([BAR * share for share in row[variable.name]], abs=0.006)


def test_long_and_many_states_fit_their_box_and_are_told_in_full() -> None:
    states = [f"<state & number {n}>" for n in range(30)]
    shares = [0.5 if n == 17 else 0.5 / 29 for n in range(30)]
    (group,) = fromstring(picture_of([Node("a < b & c, a name that goes on", states, shares)], [])).iter(f"{SVG}g")
    texts = [text.text or "" for text in group.iter(f"{SVG}text")]
    assert max(map(len, texts)) <= 24
    assert "50.0%" in texts
    assert texts[-2:] == ["25 others", f"{25 * 0.5 / 29:.1%}"]
    title = next(group.iter(f"{SVG}title")).text
    assert title is not None
    assert title.startswith("a < b & c, a name that goes on: <state & number 0>, <state & number 1>")
    assert float(next(group.iter(f"{SVG}rect")).attrib["width"]) == BOX


def test_notebooks_show_networks_and_drawings() -> None:
    assert read_network(ASIA)._repr_html_().count("<g ") == 8
    # A table alone where a picture would be a carpet.
    assert "<svg" not in random_network(51)._repr_html_()
    drawing = grid(2, 2).draw()
    assert drawing.svg in drawing._repr_html_()
    assert "marker-end" not in drawing.svg


def test_what_cannot_be_drawn() -> None:
    asia = read_network(ASIA)
    with pytest.raises(ModelError, match="no variable named 'smok', did you mean 'smoke'"):
        asia.draw({"smok": "yes"})
    with pytest.raises(EvidenceError, match="no picture of evidence that is invalid: column 'smoke'"):
        asia.draw({"smoke": "perhaps"})
    with pytest.raises(EvidenceError, match="no picture of evidence that is impossible"):
        asia.draw({"either": "no", "tub": "yes"})
    with pytest.raises(InputError, match="201 variables make no picture, 200 or fewer do"):
        random_network(201, states=2).draw()


def test_the_command_line(tmp_path: Path) -> None:
    done = junctor_cli("draw", ASIA, "--evidence", "smoke=yes", "-o", str(tmp_path / "asia.svg"))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == f"{tmp_path}/asia.svg: 8 variables"
    assert (tmp_path / "asia.svg").read_text() == read_network(ASIA).draw({"smoke": "yes"}).svg
    for args, message in (
        (["-o", "asia.png"], "asia.png: expected a file .svg"),
        (["-o", str(tmp_path / "a.svg"), "--evidence", "smoke"], "found no '=' in 'smoke'"),
        (["-o", str(tmp_path / "a.svg"), "--evidence", "smoke=x"], "no picture of evidence that is invalid"),
    ):
        refused = junctor_cli("draw", ASIA, *args)
        assert refused.exit_code in (2, 3)
        assert message in " ".join(refused.stderr.replace("│", " ").split())
    assert not (tmp_path / "a.svg").exists()
