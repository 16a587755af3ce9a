"""The reference of all commands, a Markdown page each, made from the command line itself."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import typer
from junctor.cli import app_for


def pages() -> dict[str, str]:
    """Return the pages by file name; index.md lists the others."""
    commands = _below(typer.main.get_command(app_for()))
    made = {f"{name}.md": "\n".join(_page(f"junctor {name}", command)) + "\n" for name, command in commands.items()}
    return {"index.md": "\n".join(_index(commands)) + "\n", **made}


def _below(group: Any) -> dict[str, Any]:
    """Return the commands of a group by name; of a command there are none."""
    return dict(getattr(group, "commands", {}))


def _index(commands: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page of all commands, by what they are for as in the help."""
    yield "# Commands\n\nMade from `junctor COMMAND --help`. [Exit codes](../docs/running.md#exit-codes) are the same"
    yield "for all, and [settings](../docs/running.md#settings) stand for options that are not given."
    panels = defaultdict[str, list[str]](list)
    for name, command in commands.items():
        panels[command.rich_help_panel].append(f"| [{name}]({name}.md) | {_text(_first_line(command))} |")
    for panel, rows in panels.items():
        yield f"\n## {panel}\n\n| command | what it does |\n|---|---|"
        yield from rows


def _page(name: str, command: Any, level: int = 1) -> Iterator[str]:
    """Yield the lines of a command and, one level lower, of the commands below it."""
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"{'#' * level} {name}\n\n```text\n{usage}\n```\n\n{_text(command.help or '')}\n"
    yield from _shown(command.epilog or "")
    panels = defaultdict[str, list[Any]](list)
    for each in command.params:
        panels[each.rich_help_panel or f"{_kind(each)}s".capitalize()].append(each)
    for panel, parameters in panels.items():
        yield f"{'#' * (level + 1)} {panel}\n\n| {_kind(parameters[0])} | meaning |\n|---|---|"
        yield from (f"| `{_words(each, context)}` | {_meaning(each)} |" for each in parameters)
        yield ""
    for below, inner in _below(command).items():
        yield from _page(f"{name} {below}", inner, level + 1)


def _kind(parameter: Any) -> str:
    """Return the word for a parameter."""
    return "argument" if parameter.param_type_name == "argument" else "option"


def _shown(epilog: str) -> Iterator[str]:
    """Yield the example and the page at the end of a help."""
    for example in re.findall("Example: `(.*)`", epilog):
        yield f"```sh\n{example}\n```\n"
    for page in re.findall(r"More: docs/(\w+)\.md", epilog):
        yield f"More: [{page.replace('_', ' ')}](../docs/{page}.md), [all commands](index.md).\n"


def _words(parameter: Any, context: Any) -> str:
    """Return how a parameter is written, with the values that it takes."""
    if _kind(parameter) == "argument":
        return str(parameter.make_metavar(context))
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {parameter.make_metavar(context)}"


def _meaning(parameter: Any) -> str:
    """Return the help of a parameter, with its bounds and default."""
    bounds = getattr(parameter.type, "_describe_range", str)()
    default = None if getattr(parameter, "is_flag", False) else parameter.default
    notes = [
        bounds and f"`{bounds}`",
        "has to be given" if parameter.required else "",
        f"default `{default}`" if isinstance(default, str | int | float) else "",
    ]
    told = "; ".join(filter(None, notes))
    return _text(parameter.help or "") + (f" ({told})" if told else "")


def _first_line(command: Any) -> str:
    """Return what all commands' help says of one."""
    return str(command.help or "").partition("\n\n")[0].replace("\n", " ")


def _text(markdown: str) -> str:
    """Return a help text as a page takes it: options are code, and signs are signs but in code."""
    parts = re.sub(r"(`[^`]*`)|(--[a-z][\w-]*)", lambda found: found[1] or f"`{found[2]}`", markdown).split("`")
    parts[::2] = [re.sub(r"([*_|])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)
