"""A report written down earlier, read again: only what this version wrote is believed."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from trackwalker.errors import EvidenceError
from trackwalker.perf.result import PerfReport

NAME = "perf.json"
_UPSTREAM = "analysis.json"


def upstream_tgs(directory: Path | None) -> float | None:
    """The steady tokens/s/device that upstream's own analysis left in the job directory."""
    try:
        said = json.loads((directory / _UPSTREAM).read_bytes()) if directory else {}
        return float(said["tgs"]["steady"]["mean"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or not upstream's


def load_report(path: Path) -> PerfReport:
    """The report in a perf.json."""
    try:
        return PerfReport.model_validate_json(path.read_bytes())
    except OSError as e:
        raise EvidenceError(f"cannot read {path}: {e.strerror}") from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "file"
        raise EvidenceError(f"{path} is no report of trackwalker perf ({where}: {first['msg']}); make it again") from e
