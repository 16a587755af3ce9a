"""The reference of all public Python functions, as HTML: `uv run python docs/reference/build.py FOLDER`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pdoc

MODULES = ("junctor", "junctor.hmm", "junctor.generate")


def build(folder: Path) -> None:
    """Write the pages, one a module."""
    for name in MODULES:
        module = import_module(name)
        # Names that are imported at first use are there for pdoc as well.
        vars(module).update({each: getattr(module, each) for each in getattr(module, "__all__", ())})
    pdoc.render.configure(template_directory=Path(__file__).parent, show_source=False)
    # Without the modules below them, in which users have no business.
    pdoc.pdoc(*MODULES, r"!junctor\.(?!hmm$|generate$).*", output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
