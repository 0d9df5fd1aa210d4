"""Scripts and programs of tasks, as the SDK describes them."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from retrofill.sdk.texts import Table, fields_between, outline

# Fields with paths or addresses, besides the script's own. Those of the second line may be ``path#name``.
LISTS = ("py_files", "jars")
PLACED = ("files", "archives", "templates")


def script_of(
    script: str, *, lists: Mapping[str, Sequence[str]], tables: Sequence[Table], **others: Any
) -> dict[str, Any]:
    """A script with the arguments of ``Pipeline.submit`` or ``Pipeline.command``. Raises ``ValueError``."""
    for name, given in lists.items():
        if isinstance(given, str):
            raise ValueError(f"{name} is {given!r}: give a list")
    return {"script": script, **lists, "tables": [table.to_data() for table in tables], **others}


def located(script: Mapping[str, Any], place: Callable[[str], str], fill: Callable[[str], str] = str) -> dict[str, Any]:
    """A script with the ``place`` of each of its addresses, and of its working directory.

    ``fill``: what the paths with fields become first.
    """

    def named(address: str) -> str:
        path, mark, name = address.partition("#")
        return place(fill(path)) + mark + name

    lists = {name: [place(each) for each in script.get(name, ())] for name in LISTS}
    named_lists = {name: [named(each) for each in script.get(name, ())] for name in PLACED}
    cwd = script.get("cwd")
    return {
        **script,
        "script": place(script["script"]),
        **lists,
        **named_lists,
        "cwd": None if cwd is None else place(fill(cwd)),
    }


def as_applied(task: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The task with absolute paths of its script and the files of that, looked for in ``folder`` first.

    Reads its templates and its file of SQL, so that values missing in a request are found before they are filled in.
    Raises ``ValueError``.
    """
    script = task["submit"]
    if task["sql"] is not None:
        return _with_text(task, folder)
    if script is None:
        return dict(task)
    made = located(script, lambda address: _path(address, folder))
    if task["kind"] == "command":
        made["script"] = _program(script, made["script"])
    found = [_fields_of(each.partition("#")[0], task["name"]) for each in made["templates"]]
    made["fields"] = list(dict.fromkeys(field for fields in found for field in fields))
    return {**task, "submit": made}


def _program(script: Mapping[str, Any], path: str) -> str:
    """The program of a command: in the working directory, at the path, or of that name on the PATH of its host."""
    given = os.path.normpath(script["script"]) if "/" in script["script"] else script["script"]
    names = [each.partition("#")[2] or Path(each).name for kind in PLACED for each in script[kind]]
    if "/" in script["script"] and given.split("/")[0] in names:
        return f"./{given}"
    return path if "/" in script["script"] or Path(path).is_file() else given


def _path(given: str, folder: Path | None) -> str:
    """The absolute path: next to the pipeline's file, or in the working directory if it is only there.

    Addresses of other file systems are kept.
    """
    if "://" in given:
        return given
    here = Path(given).absolute()
    beside = folder / given if folder else here
    # Normalized, because ".." would hide the real location.
    return os.path.normpath(here if meant(str(here)) and not meant(str(beside)) else beside)


def meant(path: str) -> list[Path]:
    """What there is that the absolute path may mean, with whatever in place of its fields."""
    pattern = outline(path, glob.escape).lstrip("/")
    return sorted(Path("/").glob(pattern)) if pattern else [Path("/")]


def _fields_of(template: str, task: str) -> list[str]:
    """The fields of a template, or of all that its path may mean."""
    fields: list[str] = []
    for path in meant(template):
        try:
            fields += fields_between(path.read_text("utf-8"))
        except UnicodeError as e:
            raise ValueError(f"task {task!r}: template {path}: it is no text in UTF-8") from e
        except (OSError, ValueError) as e:
            raise ValueError(f"task {task!r}: template {path}: {getattr(e, 'strerror', e)}") from e
    return fields


def _with_text(task: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The task with the text of its file of SQL, which is looked for as scripts are. Raises ``ValueError``."""
    path = _path(task["sql"]["file"], folder)
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise ValueError(f"task {task['name']!r}: {path} cannot be read: {why}") from e
    return {**task, "sql": {**task["sql"], "text": text}}
