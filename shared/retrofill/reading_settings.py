"""The settings as a process starts with them: one that is wrong is named on one line."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_settings import SettingsError

from retrofill.settings import ENDPOINTS_FILE, Settings


class WrongSetting(Exception):
    """A setting, or a stack's endpoints file, cannot be used; the text says which and why."""


def read_settings() -> Settings:
    """The settings of the environment and of the stack in this folder. Raises ``WrongSetting``."""
    try:
        return Settings()
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        name = "_".join(str(step) for step in first["loc"][:1]).upper()
        raise WrongSetting(f"the setting RETROFILL_{name} is wrong: {first['msg']}") from e
    except SettingsError as e:
        raise WrongSetting(f"a setting is wrong (those with braces are JSON): {e}") from e
    except (ValueError, OSError) as e:
        raise WrongSetting(f"{ENDPOINTS_FILE} of the stack in this folder cannot be read: {e}") from e
