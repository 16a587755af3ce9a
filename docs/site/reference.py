"""The reference of all public Python functions, as HTML: `uv run python docs/site/reference.py FOLDER`."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pdoc

MODULES = ("junctor", "junctor.hmm", "junctor.generate")


def build(folder: Path) -> None:
    """Write the pages, one a module."""
    for name in MODULES:
        module = import_module(name)
        # Names that are imported at first use are there for pdoc as well.
        public = {each: getattr(module, each) for each in getattr(module, "__all__", ())}
        vars(module).update(public)
        for each in public.values():
            _show_options(each)
    pdoc.render.configure(template_directory=Path(__file__).parent, show_source=False)
    # Without the modules below them, in which users have no business.
    pdoc.pdoc(*MODULES, r"!junctor\.(?!hmm$|generate$).*", output_directory=folder)


def _show_options(public: Any) -> None:
    """Let pdoc show the keywords of a function, or of the methods of a class, that are options of the table."""
    for each in vars(public).values() if inspect.isclass(public) else [public]:
        # It looks behind decorators, where all options are one keyword.
        if inspect.isfunction(each) and hasattr(each, "__signature__"):
            del each.__wrapped__


if __name__ == "__main__":
    build(Path(sys.argv[1]))
