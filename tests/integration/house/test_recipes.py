"""Recipes of CONTRIBUTING.md in a scratch copy of the package: each touches at most two files, and the thing works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scratch_copy import Scratch
from sysfs_trees import mi300x, put
from triage_logs import ending, header, steps

# Followed once in months; those for a cause, a signature, a dialect, a metric, a model and a panel stay.
RARE = pytest.mark.long(
    reason="a recipe that is seldom followed: a Python that reads a copy of the package for each command"
)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    made = Scratch(tmp_path / "scratch")
    yield made
    made.few_places()


def failed_job(workspace: Path, line: str) -> None:
    """Job 77 of a workspace: it trains, says the line on one rank, and dies."""
    workspace.mkdir()
    told = header() + steps(9) + f"2: {line}\n" + ending()
    (workspace / "77-JAX-toy.log").write_text(told)


def test_a_model_is_one_file(scratch: Scratch) -> None:
    small = (scratch.package / "models" / "tiny.yml").read_text()
    scratch.add("models/pebble-1b.yml", small.replace("run_name: tiny", "run_name: pebble"))
    assert "pebble-1b" in scratch.trackwalker("config", "list")
    plan = json.loads(scratch.trackwalker("plan", "pebble-1b", "--json", "--", "steps=7"))
    assert plan["name"] == "JAX-pebble-1b"


def test_a_dialect_of_step_lines_is_one_entry(scratch: Scratch, tmp_path: Path) -> None:
    entry = {
        "name": "slatelab",
        "needles": ["~slate~"],
        "pattern": "~slate~ s(?P<step>\\d+) took (?P<seconds>NUM) loss (?P<loss>NUM)",
        "first": 1,
    }
    scratch.put_before("job/dialects.json", '  {\n   "name": "megatron"', f"  {json.dumps(entry)},\n")
    log = tmp_path / "outputs" / "77-JAX-toy.log"
    log.parent.mkdir()
    log.write_text("".join(f"~slate~ s{n} took 2.5 loss {9 - n / 10}\n" for n in range(1, 41)))
    told = json.loads(scratch.trackwalker("triage", "77", "--json", cwd=tmp_path))
    assert told["progress"]["last_step"] == 40


def test_a_signature_is_one_entry(scratch: Scratch, tmp_path: Path) -> None:
    scratch.append(
        "logs/signatures/storage.yml",
        "- id: slatefs-lost\n  cause: storage-error\n  tier: 2\n  any:\n    - {has: 'slatefs: backend vanished'}\n"
        "  next: [ask who runs slatefs]\n",
    )
    failed_job(tmp_path / "outputs", "slatefs: backend vanished while writing /data/x")
    told = scratch.trackwalker("triage", "77", "--json", cwd=tmp_path)
    assert "slatefs-lost" in told


def test_a_cause_is_a_playbook_and_what_its_log_says(scratch: Scratch, tmp_path: Path) -> None:
    scratch.add(
        "playbooks/slatefs-lost.md",
        """---
id: slatefs-lost
title: The slatefs servers went away
name: Slatefs lost
symptoms: [failed, stall]
retry: storage
sweep: failed
group: crash
topics: [storage]
about_host: false
state: store-broken
tests:
  - id: said
    role: require
    signature: [slatefs-lost]
summary: >-
  The slatefs servers went away {after}.
actions:
  - do: restart-job
    why: "when slatefs is back, resume from the last checkpoint"
    risk: work since the last checkpoint
    needs_approval: true
---
# The slatefs servers went away

Ask who runs them.
""",
    )
    scratch.append(
        "logs/signatures/storage.yml",
        "- id: slatefs-lost\n  cause: slatefs-lost\n  tier: 1\n  any:\n    - {has: 'slatefs: backend vanished'}\n"
        "  next: [ask who runs slatefs]\n",
    )
    failed_job(tmp_path / "outputs", "slatefs: backend vanished while writing /data/x")
    told = json.loads(scratch.trackwalker("diagnose", "77", "--json", cwd=tmp_path))
    assert [cause["cause"] for cause in told["causes"] if cause["role"] == "root"] == ["slatefs-lost"]
    assert told["actions"][0]["do"] == "restart-job"


def test_a_gpu_metric_is_declared_beside_its_file_and_has_a_meaning(scratch: Scratch, tmp_path: Path) -> None:
    scratch.put_before(
        "node/collectors/metrics.json",
        '  "hw_gpu_vram_used_bytes": {"type": "gauge", "help": "Memory in use."',
        '  "hw_gpu_vis_vram_used_bytes": {"type": "gauge", "help": "Memory in use that the host can map.", '
        '"file": "mem_info_vis_vram_used"},\n',
    )
    scratch.put_before(
        "telemetry/metrics.yml",
        '  - {match: "hw_gpu_power_limit_default_watts"',
        '  - {match: "hw_gpu_vis_vram_used_bytes", kind: gauge, unit: bytes, layer: resource, bad: none, '
        "quantity: gpu-memory}\n",
    )
    for device in mi300x(tmp_path / "sys", gpus=2):
        put(device, {"mem_info_vis_vram_used": 4096})
    scraped = scratch.python(
        "-c",
        "import sys; from trackwalker.node.collectors.gpu_amd import AmdGpuCollector as C;"
        "from trackwalker.node.exporter.exposition import render;"
        "out = render(C('n1', sys.argv[1]).collect()); print(out if isinstance(out, str) else out.decode())",
        str(tmp_path / "sys"),
    )
    assert 'hw_gpu_vis_vram_used_bytes{gpu="1",host="n1"} 4096' in scraped
    meaning = "import trackwalker.telemetry.meaning as m; print(m.meaning_of('hw_gpu_vis_vram_used_bytes').known)"
    assert scratch.python("-c", meaning).strip() == "True"


@RARE
def test_a_notifier_is_a_file_and_its_settings(scratch: Scratch, tmp_path: Path) -> None:
    scratch.add(
        "watch/notify/pebble.py",
        '''"""A file that grows by a line for each message."""

from pathlib import Path


class Pebble:
    """Writes titles."""

    attaches = frozenset()
    idempotent = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, letter):
        """One line."""
        self._path.open("a").write(letter.message.title + "\\n")
        return {}

    def find(self, letter):
        """Not there."""
        return None

    def close(self) -> None:
        """Nothing is open."""
''',
    )
    scratch.put_before(
        "watch/notify/channels.py",
        "Channel = Annotated[",
        '''class PebbleChannel(_Part):
    """A file."""

    kind: Literal["pebble"]
    path: Path

    def open(self) -> Notifier:
        """The channel, ready to send."""
        from trackwalker.watch.notify.pebble import Pebble

        return Pebble(self.path)


''',
    )
    scratch.put_before("watch/notify/channels.py", "TelegramChannel | SlackChannel", "PebbleChannel | ")
    settings = tmp_path / "watch.yml"
    settings.write_text(f"channels:\n  ground: {{kind: pebble, path: {tmp_path / 'told'}}}\n")
    said = scratch.trackwalker("watch", "test", "ground", "--config", str(settings), cwd=tmp_path)
    assert "(pebble) took a test message" in said
    assert (tmp_path / "told").read_text() == "test message\n"


@RARE
def test_a_runtime_is_a_file_and_a_row(scratch: Scratch, tmp_path: Path) -> None:
    docker = (scratch.package / "node" / "runtimes" / "docker.py").read_text()
    scratch.add(
        "node/runtimes/nerdctl.py",
        docker.replace("class Docker", "class Nerdctl").replace('= "docker"', '= "nerdctl"'),
    )
    registry = "node/runtimes/__init__.py"
    scratch.put_before(registry, '    "podman": Offer(', '    "nerdctl": Offer(lambda cache: Nerdctl()),\n')
    imported = "from trackwalker.node.runtimes.podman"
    scratch.put_before(registry, imported, f"{imported.replace('podman', 'nerdctl')} import Nerdctl\n")
    plan = json.loads(scratch.trackwalker("plan", "tiny", "--runtime", "nerdctl", "--image", "a/b:1", "--json"))
    assert plan["container"][0] == "nerdctl"
    made = scratch.python("-c", "import trackwalker.node.runtimes as r; print(r.runtime_named('nerdctl', '').name)")
    assert made.strip() == "nerdctl"


@RARE
def test_a_sweep_kind_is_a_strategy_and_a_command(scratch: Scratch, tmp_path: Path) -> None:
    scratch.add(
        "sweep/seeds/strategy.py",
        '''"""One job for each seed."""

from trackwalker.sweep.model import Conclusion, Trial


class Seeds:
    """All seeds at once."""

    kind = "seeds"

    def __init__(self, request):
        self._trials = [
            Trial(f"seed={n}", request["model"], nodes=(), config={**request["config"], "data_shuffle_seed": str(n)})
            for n in range(request["seeds"])
        ]

    def next_trials(self, done):
        """Those that have not run."""
        return [trial for trial in self._trials if trial.key not in done]

    def stop(self, done):
        """Never."""
        return ""

    def at_most(self):
        """One each."""
        return len(self._trials)

    def conclude(self, done):
        """How many."""
        return Conclusion(f"{len(done)} seeds ran", len(done) == len(self._trials))


build = Seeds
''',
    )
    scratch.add(
        "cli/sweeps/seeds.py",
        '''"""`trackwalker sweep seeds`."""

from __future__ import annotations

import typer

from trackwalker.cli.common.options import takes
from trackwalker.cli.sweeps.start import Common, start

EXAMPLE = "sweep seeds tiny"


@takes(Common)
def seeds(ctx: typer.Context, model: str, options: Common = Common()) -> int:
    """Run one model with several seeds."""
    return start("seeds", {"model": model, "seeds": 3}, options, ctx)
''',
    )
    assert "Run one model with several seeds." in scratch.trackwalker("sweep", "--help")
    planned = scratch.trackwalker("sweep", "seeds", "tiny", "--on", "local", "--dry-run", "--json", cwd=tmp_path)
    assert [job["trial"]["key"] for job in json.loads(planned)["first_wave"]] == ["seed=0", "seed=1", "seed=2"]


@RARE
def test_a_verdict_field_is_declared_and_computed(scratch: Scratch, tmp_path: Path) -> None:
    scratch.put_before(
        "diagnose/verdict.py",
        "    failure: Failure | None = None\n",
        '    log_lines: int | None = Field(default=None, title="log lines")\n',
    )
    scratch.put_before("diagnose/engine.py", "        cost=cost_of(", "        log_lines=4321,\n")
    failed_job(tmp_path / "outputs", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert json.loads(scratch.trackwalker("diagnose", "77", "--json", cwd=tmp_path))["log_lines"] == 4321
    page = tmp_path / "page.html"
    terminal = scratch.trackwalker("diagnose", "77", "--html", str(page), cwd=tmp_path)
    assert re.search(r"^ +log lines +4,321$", terminal, re.MULTILINE)
    assert "<dt>log lines</dt><dd>4,321</dd>" in page.read_text()
    assert "- log lines: 4,321" in scratch.trackwalker("diagnose", "77", "--md", cwd=tmp_path)
    asked = (
        "from pathlib import Path; from trackwalker.agent import tools; from trackwalker.agent.workspace import *;"
        "print(tools.diagnose(Workspace(Path('outputs')), '77').facts)"
    )
    assert scratch.python("-c", asked, cwd=tmp_path).strip() == "{'log lines': '4,321'}"


def test_a_web_panel_is_a_row_with_its_function_and_a_template(scratch: Scratch, tmp_path: Path) -> None:
    scratch.put_before(
        "web/pages/job_page.py",
        "class Panel(NamedTuple):",
        '''async def files(request: Request) -> Response:
    """What is in the job directory."""
    job = await job_of(request)
    return page(request, "job_files.html.j2", job=job, size=job.log.stat().st_size)


''',
    )
    row = '    Panel("files", "Files of the run", "Reading the folder", files),\n'
    scratch.put_before("web/pages/job_page.py", '    Panel("events"', row)
    scratch.add("web/templates/job_files.html.j2", "<p>the log has {{ size|number }} bytes</p>\n")
    failed_job(tmp_path / "outputs", "RuntimeError: CUDA out of memory")
    ask = """
from pathlib import Path
from starlette.testclient import TestClient
from trackwalker.web.app import create_app
from trackwalker.web.settings import Settings
with TestClient(create_app(Settings(workspace=Path("outputs"), examine=False)), base_url="http://127.0.0.1") as client:
    print(client.get("/job/77").text, client.get("/job/77/files").text)
"""
    told = scratch.python("-c", ask, cwd=tmp_path)
    assert 'data-part="/job/77/files"' in told
    assert f"the log has {(tmp_path / 'outputs' / '77-JAX-toy.log').stat().st_size:,} bytes" in told
