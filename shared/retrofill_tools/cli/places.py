"""``retrofill places release``: lets other intervals publish to directories.

Who a directory belongs to is written in it, so this needs the file system and no server.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from retrofill.outputs.kept import number_of
from retrofill.outputs.places import owned
from retrofill.outputs.places import release as give_up
from retrofill.sdk.texts import path_in
from retrofill.wording import plural
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import print_json, print_text

group = typer.Typer(name="places", help="Release directories that belong to intervals.", no_args_is_help=True)


@group.command()
def release(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Directories to release, with those below them."),
    ],
    staged: Annotated[
        bool, typer.Option("--staged", help="Also drop staged output there that is not published yet.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be released.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let other intervals and pipelines publish to directories. Published output stays as it is."""
    targets = (Path(path_in(path) or path).absolute() for path in paths)
    found = [each for target in targets for each in owned(target, staged=staged)]
    if found and not dry_run:
        staged_too = " and drop what is staged there" if any(each.state for each in found) else ""
        confirm(f"let other intervals publish to {plural(len(found), 'directory', 'directories')}{staged_too}", yes=yes)
    for each in () if dry_run else found:
        give_up(each)
    if as_json:
        return print_json(
            [
                {
                    "place": str(each.place),
                    **asdict(each.owner),
                    "run_id": number_of(each.run),
                    "staged": bool(each.state),
                }
                for each in found
            ]
        )
    for each in found:
        print_text(f"{each.place} {'belongs' if dry_run else 'belonged'} to {each.whose}")
    if not found:
        print_text("nothing there belongs to an interval")
    return None
