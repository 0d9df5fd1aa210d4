"""Packs the packages that pipelines require into one file in the code store, by pex."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os.path import normpath
from pathlib import Path

from retrofill.errors import UserError, last_line
from retrofill.masking import masked
from retrofill.system.files import PrivateFolder
from retrofill_core.domain.data import PackedEnvironment
from retrofill_core.settings import Settings
from retrofill_core.startup import command_of
from retrofill_core.user_code.store import CodeStore, CodeStoreFails, CodeUnavailable, Missing, open_store

ASK_SECONDS = 60.0
_ASK = """
import json, site, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
platform = sys.implementation.cache_tag + "-" + sysconfig.get_platform()
print(json.dumps({"version": version, "platform": platform, "packages": site.getsitepackages()}))
"""


class NoInterpreter(Exception):
    """It cannot be executed, or is no Python. The message is one line."""


@dataclass(frozen=True)
class Interpreter:
    """``version`` like 3.12; ``platform``: also its implementation; ``packages``: the folders where it has them."""

    path: str
    version: str
    platform: str
    packages: tuple[str, ...]

    @classmethod
    def at(cls, path: str) -> Interpreter:
        """Ask the interpreter at a path, or of a name on the PATH. Raises ``NoInterpreter``."""
        try:
            done = subprocess.run(
                [path, "-I", "-c", _ASK],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ASK_SECONDS,
                check=True,
            )
            said = json.loads(done.stdout)
            return cls(path, said["version"], said["platform"], tuple(said["packages"]))
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as e:
            why = last_line(getattr(e, "stderr", None)) or getattr(e, "strerror", None) or f"it is no Python ({e})"
            raise NoInterpreter(f"{path} cannot be used: {why}") from e


_INCLUDES = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)(?:\s+|=|(?<=-r)|(?<=-c))(\S+)", re.MULTILINE)
# Projects, archives and folders on this machine, which may change without the file.
_LOCAL = re.compile(
    r"^\s*(?:[./~]|[^-#\s:@][^#\s:@]*(?:/|\.(?:whl|zip|tar\.\w+)\b)"
    r"|-e|--editable|(?:-f|--find-links)[\s=]*(?!\w+://)\S|(?:[^#\n]*@\s*)?file:)",
    re.MULTILINE,
)


SUFFIX = ".pex"
# The name of an environment's hash, by what it was packed from.
INDEX_SUFFIX = ".packed"
# How the file is packed. Another way is another environment.
OPTIONS = (
    *("--include-tools", "--inherit-path=fallback", "--no-emit-warnings"),
    *("--use-pip-config", "--resolver-version", "pip-2020-resolver"),
)
# A user, or a user and a password, in the address of a package.
_LOGIN = re.compile(r"https?://[^/@\s\"]+@")


class NoRequirements(Exception):
    """A file cannot be read. The message is one line."""


def pack(
    settings: Settings, requirements: Path, python: str | None = None, say: Callable[[str], object] = lambda _: None
) -> PackedEnvironment:
    """The environment of a requirements file, which is in the code store afterwards.

    ``python``: the interpreter to pack it for, by default this one. Nothing is built if the store
    has one of the same requirements and Python. ``say`` gets a line before something is. Raises
    ``UserError``.
    """
    store = open_store(settings)
    if store is None:
        raise UserError(
            "--requirements needs a code store: set RETROFILL_CODE_STORE to a directory or address that the run-starters "
            "share"
        )
    try:
        texts = read_requirements(requirements)
        interpreter = Interpreter.at(python or sys.executable)
        sha256 = _packed(store, texts, requirements, interpreter, say)
    except NoInterpreter as e:
        raise UserError(f"{e}: give --python an interpreter of the version that drivers have") from e
    except (NoRequirements, CodeStoreFails, CodeUnavailable) as e:
        raise UserError(str(e)) from e
    return PackedEnvironment(sha256=sha256, python=interpreter.version)


def _packed(
    store: CodeStore,
    texts: Mapping[str, str],
    requirements: Path,
    interpreter: Interpreter,
    say: Callable[[str], object],
) -> str:
    with PrivateFolder() as folder:
        # What is installed from this machine may change under the same names.
        index = f"{_key(texts, interpreter)}{INDEX_SUFFIX}" if is_complete(dict(texts)) else None
        if index is not None and (known := _known(store, index, folder)) is not None:
            return known
        file = folder / f"environment{SUFFIX}"
        say(f"packing {requirements} for Python {interpreter.version}, which may take minutes")
        _build(requirements, interpreter, file)
        _check_no_login(requirements, file)
        sha256 = hash_of(file)
        if not store.has(f"{sha256}{SUFFIX}"):
            store.send(f"{sha256}{SUFFIX}", file)
        if index is not None:
            # After the environment, so that it never names what is not there.
            (folder / "index").write_text(sha256)
            store.send(index, folder / "index")
        return sha256


def _known(store: CodeStore, index: str, folder: Path) -> str | None:
    """The hash of an environment that the store has."""
    try:
        store.fetch(index, folder / "index")
    except Missing:
        return None
    sha256 = (folder / "index").read_text("ascii", "replace").strip()
    return sha256 if store.has(f"{sha256}{SUFFIX}") else None


def _key(texts: Mapping[str, str], interpreter: Interpreter) -> str:
    made_of = [sorted(texts.items()), interpreter.version, interpreter.platform, OPTIONS, _pex()]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def _pex() -> str:
    """The version of pex. Raises ``UserError`` if it is not installed."""
    try:
        return version("pex")
    except PackageNotFoundError:
        raise UserError("--requirements needs pex: pip install 'retrofill[environments]'") from None


def _build(requirements: Path, interpreter: Interpreter, file: Path) -> None:
    """Build the file. Raises ``UserError`` with what pip says."""
    command = [
        *command_of("pex", *OPTIONS),
        *("--python", interpreter.path, "--python-shebang", f"/usr/bin/env python{interpreter.version}"),
        *("--requirement", str(requirements), "--output-file", str(file)),
    ]
    # What asks for a login gets none, instead of waiting for it.
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        output = masked(done.stderr)
        with tempfile.NamedTemporaryFile("w", prefix="retrofill-pack-", suffix=".log", delete=False) as log:
            log.write(output)
        raise UserError(
            f"{requirements} cannot be packed: {_reason(output)}: correct it; pip's output is in {log.name}"
        )


def _reason(output: str) -> str:
    """The line that says most: the first error of pip, or the last line that is more than a mark below it."""
    lines = [" ".join(line.removeprefix("pip:").split()) for line in output.splitlines()]
    said = [line for line in lines if ": " in line and not line.endswith(":")]
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    return (errors or said[-1:] or [last_line(output)])[0].rstrip(".")


def _check_no_login(requirements: Path, file: Path) -> None:
    """Everybody who reads the store could use it. Raises ``UserError``."""
    with zipfile.ZipFile(file) as packed:
        if _LOGIN.search(packed.read("PEX-INFO").decode()) is None:
            return
    raise UserError(
        f"{requirements} has an address with a login, which would be stored with the packages: remove it there, and put it "
        "into .netrc"
    )


def hash_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Raises ``OSError``."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_requirements(file: Path) -> dict[str, str]:
    """The text of a requirements file and of all files that it includes, by path relative to its folder.

    Raises ``NoRequirements``.
    """
    found: dict[str, str] = {}
    _read(file.absolute(), file.absolute().parent, found)
    return found


def is_complete(texts: dict[str, str]) -> bool:
    """Whether the texts alone say what is installed, as far as the package index does not change."""
    return not any(_LOCAL.search(text) for text in texts.values())


def _read(file: Path, root: Path, found: dict[str, str]) -> None:
    name = str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
    if name in found:
        return
    try:
        found[name] = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise NoRequirements(f"{file} cannot be read: {why}") from e
    for included in _INCLUDES.findall(found[name]):
        if "://" not in included:
            _read(Path(normpath(file.parent / included)), root, found)
