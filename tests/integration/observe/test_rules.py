"""Recording and alert rules: valid, tested both ways by promtool, about metrics that exist, explained in the docs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from promql import known_metrics, metrics_in, recorded_names
from recorded_job import Exporter, Job, wait_for

from trackwalker.observe.live import RULES
from trackwalker.observe.prometheus import find_promtool
from trackwalker.telemetry.store import open_database

ROOT = Path(__file__).parents[3]
TESTS = sorted((ROOT / "tests" / "rules").glob("*.yml"))
FILES = sorted(RULES.glob("*.yml"))


def rules() -> list[dict[str, Any]]:
    return [rule for file in FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


ALERTS = [rule for rule in rules() if "alert" in rule]


@pytest.fixture(scope="module")
def promtool(prometheus: Path) -> Path:
    found = find_promtool(prometheus)
    assert found is not None, "this Prometheus came without promtool: run `trackwalker setup`"
    return found


def test_prometheus_accepts_every_file(promtool: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", *FILES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", TESTS, ids=lambda f: f.stem)
def test_promtool_test_rules(file: Path, promtool: Path) -> None:
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_shown_firing_and_shown_quiet() -> None:
    cases = [c for f in TESTS for t in yaml.safe_load(f.read_text())["tests"] for c in t.get("alert_rule_test", [])]
    names = {rule["alert"] for rule in ALERTS}
    assert {c["alertname"] for c in cases if c["exp_alerts"]} == names
    assert {c["alertname"] for c in cases if not c["exp_alerts"]} == names


def test_rules_ask_only_for_metrics_that_someone_collects() -> None:
    asked = set().union(*(metrics_in(rule["expr"]) for rule in rules()))
    assert asked - known_metrics() - recorded_names() == set()


def test_recorded_names_say_level_metric_and_operation() -> None:
    for name in recorded_names():
        assert re.fullmatch(r"(job|host|gpu):[a-z0-9_]+:[a-z0-9_]+", name), name


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_what_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    text = (ROOT / page).read_text()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.M | re.S))
    assert anchor == rule["alert"].lower()
    assert rule["alert"] in sections, f"{page} has no section {rule['alert']}"
    for part in ("Means:", "Does not prove:", "Do:"):
        assert part in sections[rule["alert"]], f"{rule['alert']}: {part}"


def test_the_page_explains_no_alert_that_is_gone() -> None:
    titles = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "how-to" / "alerts.md").read_text(), re.M))
    assert titles == {rule["alert"] for rule in ALERTS}


@pytest.fixture
def job(tmp_path: Path, prometheus: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


def test_an_alert_fires_in_a_run_and_stays_in_its_recording(job: Job) -> None:
    exporter = Exporter()
    job.announce(exporter)
    recorder = job.start()
    url = job.server()["access"]
    wait_for(lambda: exporter.scrapes >= 2, 30, job.output)
    exporter.close()  # the host is gone

    def firing() -> list[str]:
        alerts = httpx.get(f"{url}/api/v1/alerts", trust_env=False).json()["data"]["alerts"]
        return [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"]

    wait_for(lambda: firing() == ["HostGone"], 90, job.output)
    job.event("run-end")
    assert recorder.wait(40) == 0, job.output.read_text()
    with open_database(job.dir / "prometheus") as t:
        found = t.raw('ALERTS{alertstate="firing"}', *t.range())
    assert [(labels["alertname"], labels["job_id"]) for labels, _, _ in found] == [("HostGone", "1")]
