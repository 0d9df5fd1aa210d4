"""Reads pipelines from a file or module, by the interpreter and with the packages that drivers have."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from pydantic import ValidationError

from retrofill.errors import UserError
from retrofill_core.contract.explain import explain
from retrofill_core.domain.environment import PackedEnvironment
from retrofill_core.driver_package import inspecting
from retrofill_core.settings import Settings
from retrofill_core.user_code.source import Source


def packed(requirements: Path, settings: Settings, python: str | None) -> PackedEnvironment:
    """The environment of a requirements file, which the code store has. Raises ``UserError``."""
    # Imported here: few need it.
    from retrofill_core.user_code.packing import pack

    return pack(settings, requirements, python, lambda line: typer.echo(f"retrofill: {line}", err=True))


def read_source(
    source: str, settings: Settings, python: str | None, environment: PackedEnvironment | None = None
) -> Source:
    """The pipelines of a file or module, as data.

    They are read by the interpreter ``python``, in the environment if there is one. Raises
    ``UserError``.
    """
    # Only this command imports user code.
    from retrofill.user_code.loading import PipelineFileError
    from retrofill_core.user_code.source import read_here, read_with

    try:
        if environment is not None:
            python = unpacked(environment, settings, python)
        return read_here(source) if python is None else read_with(python, inspecting(settings.home), source)
    except PipelineFileError as e:
        raise UserError(str(e)) from e
    except ValidationError as e:
        raise UserError(f"{source}: {explain(e)}") from e
    except OSError as e:
        raise UserError(f"{settings.home} cannot be written: {e.strerror}: set RETROFILL_HOME") from e


def unpacked(environment: PackedEnvironment, settings: Settings, python: str | None) -> str:
    """The interpreter of an environment on this machine, which unpacks it once. Raises ``UserError``."""
    from retrofill_core.user_code.environments import Environments, Packed
    from retrofill_core.user_code.store import CodeUnavailable

    try:
        found = Environments(settings, python or sys.executable).unpack(Packed(environment.sha256, environment.python))
    except CodeUnavailable as e:
        raise UserError(str(e)) from e
    return found.python
