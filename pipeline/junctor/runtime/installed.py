"""Packages that come with an extra of the installation. Main functions: `require_extra` and `has_extra`."""

from __future__ import annotations

from importlib.util import find_spec

from junctor.model.errors import InputError

# What is imported of each extra that a command or function may ask for; the rest of an extra comes with it.
_PACKAGES = {
    "report": ("matplotlib", "jinja2"),
    "flow": ("prefect",),
    "cluster": ("distributed", "cryptography"),
    "sklearn": ("sklearn",),
}


def has_extra(extra: str) -> bool:
    """Return True if the packages of an extra are installed."""
    return not _missing(extra)


def require_extra(extra: str, wanted: str, otherwise: str = "") -> None:
    """Raise InputError unless the packages of an extra are installed.

    extra: its name.
    wanted: what needs them, in the words of the user.
    otherwise: what does without them; empty for nothing.
    """
    if missing := _missing(extra):
        choice = f", or {otherwise}" if otherwise else ""
        names = " and ".join(missing)
        raise InputError(f'{wanted} needs {names}, not installed here: pip install "junctor[{extra}]"{choice}')


def _missing(extra: str) -> list[str]:
    return [name for name in _PACKAGES[extra] if find_spec(name) is None]
