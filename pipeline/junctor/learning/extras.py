"""What a fit is asked for besides the fitted network or model; loaded without NumPy. Main class: Extras."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from junctor.runtime.installed import require_extra
from junctor.runtime.remote import AnyPath


@dataclass(frozen=True, slots=True)
class Extras:
    """What is found out besides the fitted network or model; the fit does not depend on it.

    errors: whether standard errors of all parameters are.
    page: path of a page on the fit, None for none.
    facts: further lines of the page, such as paths.
    watch: told how far standard errors and the check are: what is counted, how many are done, of how many, and a
        forecast of the seconds left, if there is one.
    """

    errors: bool = False
    page: AnyPath | str | os.PathLike[str] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    watch: Callable[[str, int, int, float | None], None] = lambda *_: None

    def __post_init__(self) -> None:
        if self.page is not None:
            require_extra("report", "a page", "leave the report out")
