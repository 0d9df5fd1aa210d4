"""``retrofill tokens``: who may log in to the console and call its API, in a file that the console reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retrofill.errors import UserError
from retrofill_core.setting_types import Role
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.options import AsJson, Form, takes_form
from retrofill_tools.cli.output import Column, print_json, print_list, print_text, warn
from retrofill_tools.client.connect import checked_settings
from retrofill_tools.client.tokens import add, make, revoke, stored

group = typer.Typer(name="tokens", help="Create, list and revoke tokens of the console's users.", no_args_is_help=True)

FileOption = Annotated[
    Path | None, typer.Option("--file", help="The file of tokens. Default: RETROFILL_CONSOLE_TOKENS.")
]
SETTING = "RETROFILL_CONSOLE_TOKENS"


@group.command("create")
def create(
    user: Annotated[
        str, typer.Argument(help="The user, who becomes the requester of everything that the token requests.")
    ],
    role: Annotated[Role, typer.Option(help="What it allows; each role includes those before it.")],
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a user's token and print it once. Without a file, also print the line that the file needs."""
    path = file or checked_settings().console_tokens
    secret, token = make(user, role)
    if path is not None:
        add(path, token)
    if as_json:
        return print_json({"user": token.user, "role": role, "token": secret, "file": path, "line": token.line})
    if path is None:
        print_text(f"the line of the file {SETTING}: {token.line}")
    return print_text(secret)


@group.command("list")
@takes_form
def list_(file: FileOption = None, *, form: Form) -> None:
    """List the users that have tokens, with their roles. Tokens themselves are not stored."""
    found, wrong = stored(_path(file))
    warn(wrong)
    columns = [
        Column("user", lambda each: each.user),
        Column("role", lambda each: each.role),
        Column("SHA-256", lambda each: each.sha256[:12]),
    ]
    print_list(form, found, columns, name=lambda each: each.user, empty="no tokens")


@group.command("revoke")
def revoke_(
    user: Annotated[str, typer.Argument(help="Whose tokens.")],
    file: FileOption = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Revoke all tokens of a user. The console refuses them at once."""
    path = _path(file)
    confirm(f"revoke all tokens of {user}", yes=yes)
    number = revoke(path, user)
    if not number:
        raise UserError(f"{path} has no token of {user}: retrofill tokens list")
    return print_json({"user": user, "revoked": number}) if as_json else print_text(f"revoked: {number}")


def _path(file: Path | None) -> Path:
    path = file or checked_settings().console_tokens
    if path is None:
        raise UserError(f"no file of tokens: set {SETTING}, or give --file")
    return path
