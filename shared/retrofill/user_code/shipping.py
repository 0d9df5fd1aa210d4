"""Shipping the code of pipelines: into the code store, before anybody is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from retrofill.domain.pipeline import PipelineDefinition
from retrofill.errors import UserError
from retrofill.settings import Settings
from retrofill.user_code.archive import CannotArchive, archive_of
from retrofill.user_code.store import CodeStore, CodeStoreFails


def ship(
    settings: Settings, definitions: Sequence[PipelineDefinition], include: Sequence[Path]
) -> list[PipelineDefinition]:
    """Store the code of the pipelines of one file or module; they name it then. Raises ``UserError``.

    They stay as they are where no code store is set, and where the code is part of an installed package.
    """
    if settings.code_store is None:
        if include:
            raise UserError("--include needs a code store: set RETROFILL_CODE_STORE to a folder that the drivers share")
        return list(definitions)
    try:
        made = archive_of(definitions, include, settings.code_max_bytes)
        if made is None:
            return list(definitions)
        root, archive = made
        CodeStore(settings.code_store).put(archive)
    except (CannotArchive, CodeStoreFails) as e:
        raise UserError(str(e)) from e
    shipped = {"sha256": archive.sha256, "root": str(root)}
    return [each.model_copy(update={"code": each.code.model_copy(update=shipped)}) for each in definitions]
