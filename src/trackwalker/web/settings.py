"""What a server of the web app is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """One workspace, and who may look at it."""

    workspace: Path
    token: str = ""  # empty: whoever reaches the loopback address may look; `serve` always gives one
    model: str | None = None  # for the ask box, as `ask --model` and `ask --endpoint` take them
    endpoint: str | None = None
    price: float | None = None  # of one GPU-hour, for what an incident cost
    kept: Path | None = None  # where it keeps what it worked out; None: the user's cache folder
    examine: bool = False  # diagnose finished and troubled jobs in the background

    @property
    def has_model(self) -> bool:
        """Whether a model may be asked to look further; otherwise answers come from the engine alone."""
        return self.model is not None or self.endpoint is not None
