"""`junctor cache`: what stays on this machine between runs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document

# Nouns for the kinds of entries whose names are no nouns for a user.
_NOUNS = {
    "cut": "cut plan",
    "overlap": "task overlap",
    "bound": "bound plan",
    "lowered": "lowered plan",
    "fit": "price list",
}


@cli.takes_options()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    **options: Unpack[cli.JsonOptions],
) -> None:
    """Show or clear what is kept for the next run: networks, plans (cut, bound, lowered), prices.

    It lies in the user's cache directory (`XDG_CACHE_HOME`, `~/.cache`). No answer depends on it. `JUNCTOR_CACHE`, or
    `cache` in `junctor.toml`, is its bound, such as 2GiB; `off` is no cache.
    """

    from junctor.model.errors import RunError, counted
    from junctor.planning.budget import format_bytes
    from junctor.runtime.cache import user_cache
    from junctor.runtime.settings import load_settings

    load_settings()
    kept = user_cache()
    removed = 0
    if clear:
        try:
            removed = kept.clear()
        except OSError as error:
            raise RunError(f"{error.filename or kept.folder}: {error.strerror or error}: remove it by hand") from error
    entries = kept.entries()
    size, kinds = sum(entry.bytes for entry in entries), Counter(entry.kind for entry in entries)
    if options["json"]:
        record = {"folder": str(kept.folder), "limit": kept.limit, "entries": len(entries), "bytes": size}
        print_document({**record, "kinds": kinds, "removed": removed})
        return
    if clear:
        typer.echo(f"{removed:,} {'entry' if removed == 1 else 'entries'} removed")
    told = ", ".join(counted(count, _NOUNS.get(kind, kind)) for kind, count in sorted(kinds.items())) or "no entries"
    bound = f"of {format_bytes(kept.limit)}" if kept.limit else "and it is off"
    typer.echo(f"{kept.folder}: {told}, {format_bytes(size)} {bound}")
