"""Grafana boards as data: `boards/*.yml` say what is shown, this makes the JSON and the provisioning files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from trackwalker.errors import UsageError
from trackwalker.job.whole import write_whole
from trackwalker.job.yaml_files import read_yaml

BOARDS = Path(__file__).parent / "boards"
_SCHEMA = 39  # Grafana 10.4; later ones migrate it by themselves
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SOURCE_UID = "trackwalker"
_WIDTH, _HEIGHT = 24, 8


def write_dashboards(folder: Path, prometheus_url: str) -> list[Path]:
    """Write every board and what Grafana needs to find them; returns the files."""
    boards, provisioning = folder / "dashboards", folder / "provisioning"
    files = {boards / f"{name}.json": json.dumps(board, indent=1) + "\n" for name, board in all_boards().items()}
    source: dict[str, Any] = {"name": "Trackwalker", "type": "prometheus", "uid": _SOURCE_UID, "access": "proxy"}
    source |= _reached(prometheus_url)
    provider = {"name": "trackwalker", "folder": "Trackwalker", "type": "file"}
    options = {"path": str(boards.absolute())}
    files[provisioning / "datasources" / "trackwalker.yml"] = _yaml({"apiVersion": 1, "datasources": [source]})
    files[provisioning / "dashboards" / "trackwalker.yml"] = _yaml(
        {"apiVersion": 1, "providers": [{**provider, "options": options}]}
    )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text, mode=0o600 if "basicAuthPassword" in text else 0o644)
    except OSError as e:
        raise UsageError(f"cannot write into {folder}: {e.strerror}; choose another folder") from e
    return list(files)


def _reached(url: str) -> dict[str, Any]:
    """The address, and the login in the fields that Grafana encrypts."""
    parts = urlsplit(url)
    if not parts.password:
        return {"url": url}
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    secret = {"basicAuthPassword": unquote(parts.password)}
    return {"url": bare, "basicAuth": True, "basicAuthUser": unquote(parts.username or ""), "secureJsonData": secret}


def all_boards() -> dict[str, dict[str, Any]]:
    """Grafana's JSON of every board, by name."""
    return {path.stem: _board(path.stem, read_yaml(path.read_text())) for path in sorted(BOARDS.glob("*.yml"))}


def _board(name: str, described: dict[str, Any]) -> dict[str, Any]:
    return {
        "uid": f"trackwalker-{name}",
        "title": f"Trackwalker: {described['title']}",
        "description": described["about"],
        "tags": ["trackwalker"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,  # one cross-hair over all panels: what moved together is what one looks for
        "templating": {"list": _variables()},
        "links": [{"type": "dashboards", "tags": ["trackwalker"], "title": "", "includeVars": True, "keepTime": True}],
        "annotations": {"list": []},
        "panels": _panels(described["rows"]),
    }


def _variables() -> list[dict[str, Any]]:
    def query(name: str, promql: str, several: bool) -> dict[str, Any]:
        extra = {"multi": True, "includeAll": True, "allValue": ".*"} if several else {}
        asked = {"query": promql, "refId": name}
        return {"name": name, "type": "query", "datasource": _SOURCE, "query": asked, "refresh": 2, "sort": 1, **extra}

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        query("job_id", 'label_values(up{job="node_hw"}, job_id)', several=False),
        query("host", 'label_values(hw_procs_running{job_id="$job_id"}, host)', several=True),
    ]


def _panels(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    x = y = height = 0
    for title, row in rows.items():
        y, x, height = y + height, 0, 1
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []})
        for described in row:
            width, tall = (6, 4) if described.get("kind") == "stat" else (12, _HEIGHT)
            if x == 0 or x + width > _WIDTH:
                x, y, height = 0, y + height, tall
            place = {"x": x, "y": y, "w": width, "h": tall}
            panels.append(_panel(len(panels) + 1, described, place))
            x += width
    return panels


def _panel(number: int, described: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": described.get("unit", "short")}
    if described.get("stacked"):
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    targets = [
        {"refId": chr(ord("A") + i), "expr": " ".join(promql.split()), "legendFormat": legend, "datasource": _SOURCE}
        for i, (legend, promql) in enumerate(described["queries"].items())
    ]
    return {
        "id": number,
        "type": described.get("kind", "timeseries"),
        "title": described["title"],
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def _yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False)
