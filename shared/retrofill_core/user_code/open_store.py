"""Opens the code store that the settings name, and other places."""

from __future__ import annotations

from pathlib import Path

from retrofill_core.setting_types import store_options
from retrofill_core.settings import Settings
from retrofill_core.user_code.store import CodeStore, FolderStore

FILE = "file://"


def open_store(settings: Settings) -> CodeStore | None:
    """The code store, if one is set. Connects to nothing."""
    return None if settings.code_store is None else store_of(settings.code_store, settings)


def store_of(address: str, settings: Settings) -> CodeStore:
    """The files in a directory or at an fsspec address, with the options of the code store."""
    if "://" not in address or address.startswith(FILE):
        return FolderStore(Path(address.removeprefix(FILE)))
    # Imported here: a directory needs no fsspec.
    from retrofill_core.user_code.remote_store import RemoteStore

    return RemoteStore(address, store_options(settings.code_store_options))
