"""Ships the code and the packages of pipelines to the code store, before they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from retrofill.errors import UserError
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.settings import Settings
from retrofill_core.user_code.archive import CannotArchive, archive_of
from retrofill_core.user_code.open_store import open_store
from retrofill_core.user_code.source import Source
from retrofill_core.user_code.store import CodeStoreFails


def ship(settings: Settings, source: Source, include: Sequence[Path]) -> list[PipelineDefinition]:
    """Store the code of the pipelines of one file or module. Returns the definitions with its hash.

    They are unchanged if no code store is set or the code is an installed package. Raises
    ``UserError``.
    """
    store = open_store(settings)
    if store is None:
        if include:
            raise UserError(
                "--include needs a code store: set RETROFILL_CODE_STORE to a directory or address that the drivers share"
            )
        return list(source.definitions)
    try:
        archive = archive_of(source, include, settings.code_max_bytes)
        if archive is None:
            return list(source.definitions)
        store.put(archive)
    except (CannotArchive, CodeStoreFails) as e:
        raise UserError(str(e)) from e
    shipped = {"sha256": archive.sha256, "root": str(source.root)}
    return [each.model_copy(update={"code": each.code.model_copy(update=shipped)}) for each in source.definitions]
