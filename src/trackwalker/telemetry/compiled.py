"""Where machine code made by numba is kept: in the user's cache folder, for each user and machine once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numba

_config: Any = numba.config
if not _config.CACHE_DIR:
    _cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    _config.CACHE_DIR = str(_cache / "trackwalker" / "compiled")
inside = numba.njit(nogil=True, cache=True, inline="always")
