"""Unpacked environments: one virtual environment per hash and interpreter, shared by a machine's drivers."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256 as hashed
from pathlib import Path

from retrofill.errors import last_line
from retrofill.masking import masked
from retrofill.system.files import sync, sync_trees
from retrofill_core.settings import Settings
from retrofill_core.user_code.packing import SUFFIX, Interpreter, NoInterpreter, hash_of
from retrofill_core.user_code.store import OF_THIS_MACHINE, CannotUnpackHere, CodeUnavailable, open_store, store_of
from retrofill_core.user_code.unpacked import LEFT_BEHIND_SECONDS, cache_of, one_at_a_time

# How long to wait for another process that fetches or unpacks the same, before doing it too.
LOCK_SECONDS = 600.0
UNPACK_SECONDS = 600.0
# How long its interpreter may take to start.
CHECK_SECONDS = 100.0
# Variables with which another Python would be used, or other packages than those that are unpacked.
_NOT_INHERITED = re.compile("PYTHONPATH|PYTHONHOME|PEX_.*")
AGAIN = "then run the failed runs again"


@dataclass(frozen=True)
class Packed:
    """A packed environment: its hash, the Python that it is for, if that is known, and where it is.

    ``address``: a file at a path or fsspec address; ``None``: in the code store.
    """

    sha256: str
    python: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class Unpacked:
    """``python``: the interpreter with the environment's packages; ``file``: the environment, for Spark's executors."""

    python: str
    file: Path


class Environments:
    """The environments of drivers that would otherwise use the interpreter ``python``.

    What is not in an environment comes from that interpreter's packages.
    """

    def __init__(
        self, settings: Settings, python: str, check: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        """``check``: arguments with which an environment's interpreter must end with status 0.

        ``environment``: variables, without secrets that drivers must not have, because packages may
        run code when Python starts; none by default.
        """
        self._settings = settings
        self._python = python
        self._check = check
        self._environment = environment or {}
        self._folder = cache_of(settings) / "environments"

    @cached_property
    def base(self) -> Interpreter:
        """The interpreter below. Raises ``NoInterpreter``."""
        return Interpreter.at(self._python)

    def ready(self, packed: Packed) -> bool:
        """Whether it is unpacked. Costs a look at two names."""
        return "base" in vars(self) and self._target(packed).is_dir() and self._file(packed).is_file()

    def unpack(self, packed: Packed) -> Unpacked:
        """The environment, fetched and unpacked if needed.

        Raises ``CodeUnavailable``: ``CannotUnpackHere`` if only this machine is to blame.
        """
        try:
            self._check_version(packed)
            self._folder.mkdir(parents=True, exist_ok=True)
            for path, make in ((self._file(packed), self._fetch), (self._target(packed), self._make)):
                if path.exists():
                    continue
                with one_at_a_time(self._folder / f".{path.name}.lock", LOCK_SECONDS):
                    if not path.exists():
                        make(packed, path)
        except NoInterpreter as e:
            raise CodeUnavailable(f"{e}: set driver_python of the pool, {AGAIN}") from e
        except OSError as e:
            raise CannotUnpackHere(
                f"the environment {packed.sha256}{SUFFIX} cannot be unpacked into {self._folder}: {e.strerror or e}: check "
                "free space and write permission, or set RETROFILL_CODE_CACHE"
            ) from e
        return Unpacked(str(self._target(packed) / "bin" / "python"), self._file(packed))

    def _file(self, packed: Packed) -> Path:
        return self._folder / f"{packed.sha256}{SUFFIX}"

    def _target(self, packed: Packed) -> Path:
        # It is of one interpreter, and refers to that one's packages.
        base = hashed(repr(self.base).encode()).hexdigest()[:12]
        return self._folder / f"{packed.sha256}-{base}"

    def _check_version(self, packed: Packed) -> None:
        if packed.python not in (None, self.base.version):
            raise CodeUnavailable(
                f"the environment is packed for Python {packed.python}, and the pool's Python {self.base.path} is "
                f"{self.base.version}: apply the pipeline with --python of that version, or use a pool with the other one"
            )

    def _fetch(self, packed: Packed, target: Path) -> None:
        """Fetch the file to where executors get it from, verified against its hash."""
        _remove_left_behind(self._folder)
        draft = self._folder / f".{target.name}.{uuid.uuid4().hex}"
        try:
            place = self._copy(packed, draft)
            found = hash_of(draft)
            if found != packed.sha256:
                raise CodeUnavailable(
                    f"{place} has the hash {found}, not {packed.sha256}: it was damaged or changed; delete it and apply the "
                    f"pipeline again, {AGAIN}"
                )
            # Nobody changes it, and a cluster may execute it.
            draft.chmod(0o555)
            sync(draft)
            draft.rename(target)
            sync(self._folder)
        finally:
            draft.unlink(missing_ok=True)

    def _copy(self, packed: Packed, draft: Path) -> str:
        """Copy the file from where it is; returns that place."""
        if packed.address is not None:
            folder, _, name = packed.address.rpartition("/")
            store_of(folder or "/", self._settings).fetch(name, draft)
            return packed.address
        store = open_store(self._settings)
        name = f"{packed.sha256}{SUFFIX}"
        if store is None:
            raise CodeUnavailable(
                f"the run's environment is {name} in the code store, but RETROFILL_CODE_STORE is not set for the run-starter: "
                f"set it to where the pipeline was applied to, {AGAIN}"
            )
        store.fetch(name, draft)
        return f"{self._settings.code_store}/{name}"

    def _make(self, packed: Packed, target: Path) -> None:
        """Make the virtual environment in a folder of its own, which then gets its name as a link.

        Its programs name that folder, so it cannot be renamed.
        """
        made = self._folder / f"{target.name}.{uuid.uuid4().hex[:8]}"
        try:
            venv = [self._python, str(self._file(packed)), "venv", "--collisions-ok", str(made)]
            self._run(venv, {"PEX_TOOLS": "1"}, UNPACK_SECONDS)
            python = str(made / "bin" / "python")
            try:
                packages = Interpreter.at(python).packages
            except NoInterpreter as e:
                raise CodeUnavailable(self._not_usable(str(e))) from e
            _add_below(packages[0], self.base.packages)
            if self._check:
                self._run([python, *self._check], {}, CHECK_SECONDS)
            sync_trees([made])
            # Of two that were made at once, one gets the name.
            with suppress(FileExistsError):
                target.symlink_to(made.name)
            sync(self._folder)
        finally:
            if not (target.exists() and target.samefile(made)):
                shutil.rmtree(made, ignore_errors=True)

    def _run(self, command: Sequence[str], variables: dict[str, str], seconds: float) -> None:
        inherited = {name: value for name, value in self._environment.items() if not _NOT_INHERITED.fullmatch(name)}
        own = {"PEX_ROOT": str(self._folder / "pex"), "PEX_IGNORE_RCFILES": "1", **variables}
        try:
            subprocess.run(
                command,
                env={**inherited, **own},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=True,
            )
        except subprocess.TimeoutExpired as e:
            raise CodeUnavailable(self._not_usable(f"it was not ready within {seconds:.0f} seconds")) from e
        except subprocess.CalledProcessError as e:
            last = last_line(e.stderr)
            why = masked(last) or (f"signal {-e.returncode}" if e.returncode < 0 else f"status {e.returncode}")
            if any(f"[Errno {number}]" in last for number in OF_THIS_MACHINE):
                raise CannotUnpackHere(f"the environment cannot be unpacked into {self._folder}: {why}") from e
            raise CodeUnavailable(self._not_usable(why)) from e

    def _not_usable(self, why: str) -> str:
        return (
            f"the environment cannot be used with {self._python}: {why}: correct its requirements and apply the pipeline "
            "again, or use another pool"
        )


def _add_below(folder: str, packages: Sequence[str]) -> None:
    """Make Python find these folders of packages after its own, with what they add to the path themselves."""
    lines = [f"import site; site.addsitedir({each!r})\n" for each in packages]
    Path(folder, "retrofill-pool.pth").write_text("".join(lines))


def _remove_left_behind(folder: Path) -> None:
    """Remove what killed processes left behind."""
    before = time.time() - LEFT_BEHIND_SECONDS
    named = {path.resolve() for path in folder.iterdir() if path.is_symlink()}
    for path in folder.iterdir():
        # Drafts, locks, and virtual environments that have no name.
        if path.name.startswith(".") or (path.suffix not in ("", SUFFIX) and path.resolve() not in named):
            _remove(path, before)


def _remove(path: Path, before: float) -> None:
    try:
        if path.lstat().st_mtime >= before:
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except FileNotFoundError:
        return  # another process has just removed it
