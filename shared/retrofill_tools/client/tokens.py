"""Tokens of the console's users: a file with a line for each, its role, the token's SHA-256 and the user.

    request 6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b ada@example.com

A token is never stored: who reads the file cannot log in with it. Lines that begin with ``#`` are comments.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from retrofill.errors import UserError, WrongUsage
from retrofill.log import get_log
from retrofill_core.setting_types import Role
from retrofill_tools.client.connect import MAX_NAME

# Scanners for secrets that were published by mistake know tokens by it.
PREFIX = "retrofill_"
RANDOM_BYTES = 32
_SHA256 = re.compile(r"[0-9a-f]{64}")
log = get_log(__name__)


@dataclass(frozen=True)
class Token:
    """``user`` may do what ``role`` allows, by a token with this ``sha256`` (hexadecimal)."""

    user: str
    role: Role
    sha256: str

    @property
    def line(self) -> str:
        """As the file has it."""
        return f"{self.role} {self.sha256} {self.user}"


def make(user: str, role: Role) -> tuple[str, Token]:
    """A new token, and what is stored of it. Raises ``WrongUsage`` for a name that no line of text can have."""
    name = user.strip()
    if not name or not name.isprintable() or len(name) > MAX_NAME:
        raise WrongUsage(f"USER is not a name: use 1 to {MAX_NAME} printable characters")
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    return secret, Token(name, role, _hash(secret))


def add(path: Path, token: Token) -> None:
    """Append it to the file, which only its owner can read if it is new. Raises ``UserError``."""
    with _opened(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        file.write(("" if text.endswith("\n") or not text else "\n") + token.line + "\n")


def revoke(path: Path, user: str) -> int:
    """Remove all tokens of a user; returns how many there were. Raises ``UserError``."""
    with _opened(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.read().splitlines()
        kept = [line for line in lines if not isinstance(found := _read(line), Token) or found.user != user.strip()]
        # In its place: a container may have mounted the file alone.
        file.seek(0)
        file.truncate()
        file.writelines(f"{line}\n" for line in kept)
    return len(lines) - len(kept)


def stored(path: Path) -> tuple[list[Token], list[str]]:
    """The tokens of the file, and what is wrong with its other lines. Raises ``UserError`` if it cannot be read."""
    with _opened(path, "r") as file:
        # Whoever changes it does so in its place.
        fcntl.flock(file, fcntl.LOCK_SH)
        found = [(number, _read(line)) for number, line in enumerate(file.read().splitlines(), 1)]
    wrong = [f"{path}, line {number}, is not a valid token: {each}" for number, each in found if isinstance(each, str)]
    return [each for _, each in found if isinstance(each, Token)], wrong


class TokenFile:
    """The tokens of a file, which is read again when it changes. One that is missing has none."""

    def __init__(self, path: Path) -> None:
        """Raises ``UserError`` if it cannot be read."""
        self._path = path
        self._version: object = None
        self._tokens: Sequence[Token] = ()
        self._refresh()

    def find(self, secret: str) -> Token | None:
        """Whose token it is; compares all of them, in constant time. Raises ``UserError`` if the file cannot be read."""
        self._refresh()
        return _of(secret, self._tokens)

    def _refresh(self) -> None:
        try:
            now = self._path.stat()
            version = (now.st_mtime_ns, now.st_size, now.st_ino)
        except FileNotFoundError:
            self._version, self._tokens = None, ()
            return
        except OSError as e:
            raise UserError(f"RETROFILL_CONSOLE_TOKENS cannot be read: {e.strerror}: {self._path}") from e
        if version != self._version:
            # A change during the reading is another version.
            (self._tokens, wrong), self._version = stored(self._path), version
            for line in wrong:
                log.error("a token is ignored", reason=line)


def _of(secret: str, tokens: Iterable[Token]) -> Token | None:
    given, found = _hash(secret), None
    for each in tokens:
        if hmac.compare_digest(given, each.sha256):
            found = each
    return found


def _hash(secret: str) -> str:
    """A token is random, so that no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(line: str) -> Token | str | None:
    """A line's token, or why it has none; ``None`` for a comment."""
    if not line.strip() or line.lstrip().startswith("#"):
        return None
    role, sha256, user = (*line.split(None, 2), "", "", "")[:3]
    if role not in list(Role):
        return f"the role is not one of {', '.join(Role)}"
    if not _SHA256.fullmatch(sha256):
        return "the text after the role is not a SHA-256 in hexadecimal"
    return Token(user.strip(), Role(role), sha256) if user.strip() else "it names no user"


def _opened(path: Path, mode: str) -> IO[str]:
    try:
        if mode == "a+":
            path.touch(mode=0o600)
        return path.open(mode, encoding="utf-8")
    except OSError as e:
        raise UserError(
            f"the file of tokens cannot be {'read' if mode == 'r' else 'written'}: {e.strerror}: {path}"
        ) from e
