"""Where a secret is kept: named in the settings, read when it is needed, never written anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from trackwalker.errors import UsageError
from trackwalker.job.private import read_private


class Secret(BaseModel):
    """Where a secret is kept: a file that only its owner reads, or an environment variable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = None
    env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_only(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        # The value is not repeated: it is the secret itself.
        raise ValueError("a secret is not written into this file: give {file: PATH} or {env: NAME}")

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.file is None) == (self.env is None):
            raise ValueError("give either 'file' or 'env'")
        if self.file is not None and not self.file.expanduser().is_absolute():
            raise ValueError("write the whole path of the file: a watcher may be started anywhere")
        return self

    def read(self) -> str:
        """The secret; one clear error where it is missing, empty, or not ours alone to read and write."""
        if self.env is not None:
            value = os.environ.get(self.env, "").strip()
            if not value:
                raise UsageError(f"the environment variable {self.env} is not set; the watcher's settings ask for it")
            return value
        path = (self.file or Path()).expanduser()
        try:
            value = read_private(path).strip()
        except PermissionError as e:
            raise UsageError(f"the secret in {path} is not taken: {e.strerror}") from None
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"the secret in {path} cannot be read: {type(e).__name__}") from None
        if not value or "\n" in value:
            raise UsageError(f"{path} should hold one line with the secret")
        return value
