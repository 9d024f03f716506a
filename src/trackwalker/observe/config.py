"""What Prometheus is told to do: whom to scrape, which rules to evaluate, where to send a second copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parent / "rules"
SCRAPE_S = 1
RAY_SCRAPE_S = 5  # as upstream: Ray itself looks no more often
RAY_UNWANTED = "ray_grpc_.*|.*_bucket|python_.*|process_.*|target_info"
EVALUATE_S = 5  # forty-odd cheap rules: often enough for an alert, rarely enough not to be felt


def prometheus_config(
    targets: Path, ray_targets: Path, remote_write: dict[str, Any] | None = None, token_file: str = ""
) -> str:
    """The configuration file: every second, whatever the node agents announce, and Ray where there is one."""
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{SCRAPE_S}s",
            "scrape_timeout": f"{SCRAPE_S}s",
            "evaluation_interval": f"{EVALUATE_S}s",
        },
        "rule_files": [str(RULES / "*.yml")],
        "scrape_configs": [
            {
                "job_name": "node_hw",
                "honor_timestamps": True,
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
                **({"authorization": {"credentials_file": token_file}} if token_file else {}),
            },
            {
                "job_name": "ray",
                "scrape_interval": f"{RAY_SCRAPE_S}s",
                "file_sd_configs": [{"files": [str(ray_targets)], "refresh_interval": "1s"}],
                # What is new with every start of Ray would cut each series; its inner workings say nothing of the run.
                "metric_relabel_configs": [
                    {"action": "labeldrop", "regex": "SessionName|Version|otel_scope_.*"},
                    {"action": "drop", "source_labels": ["__name__"], "regex": RAY_UNWANTED},
                ],
            },
        ],
    }
    if remote_write is not None:
        config["remote_write"] = [remote_write]
    return yaml.safe_dump(config, sort_keys=False)
