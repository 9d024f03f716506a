"""A bundle of a run that our launcher submitted: what the launcher knows besides stays at home, names and values."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from trackwalker.job.resolve import resolve
from trackwalker.lab.bundle import pack
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import Simulated, simulate

# Where each stands under its name; in the log it stands without one.
SECRETS = {
    "order": "corr3ct-horse-battery",
    "spec": "st4ple-of-the-spec",
    "config": "c0nfig-only-value",
    "patch": "patched-in-s3cret",
    "knob": "knob-pa55phrase",
    "argv": "typed-after-a-flag",
    "setting": "command-line-s3tting",
    "account": "regi5try-password",
}


@pytest.fixture
def job(tmp_path: Path) -> Simulated:
    made = simulate(load_scenario("container-pull-fail"), tmp_path / "case", nodes=2, form="ours")
    told = made.workspace / ".submissions" / "20260101_000000_abcdef"
    told.mkdir(parents=True)
    order = {"name": "JAX-ds-proxy", "overrides": {"WANDB_API_KEY": SECRETS["order"]}, "argv": ["python3", "train.py"]}
    (told / "order.json").write_text(json.dumps(order))
    (told / "time-limit-0").write_text("")
    ranks = [{"rank": 0, "argv": ["x"], "env": {"HF_TOKEN": SECRETS["spec"]}}]
    (made.job / "agent").mkdir()
    (made.job / "agent" / "spec.json").write_text(json.dumps({"job_id": "1", "ranks": ranks}))
    (made.job / "config.yml").write_text(f"steps: 5\nhf_access_token: {SECRETS['config']}\n")
    provenance = json.loads((made.job / "provenance.json").read_text())
    provenance["patch"] = f'+db_password = "{SECRETS["patch"]}"\n'
    (made.job / "provenance.json").write_text(json.dumps(provenance))
    record = json.loads((made.job / "run.json").read_text())
    record["submission"] = str(told)
    record["knobs"] = {"PROXY_PASSWORD": SECRETS["knob"], "IMAGE": f"docker://bob:{SECRETS['account']}@hub.example/x"}
    record["argv"] = ["submit", "ds-proxy", "--api-key", SECRETS["argv"], "--", f"_env_GIT_PAT={SECRETS['setting']}"]
    (made.job / "run.json").write_text(json.dumps(record, indent=1))
    log = made.workspace / f"{made.job.name}.log"
    nameless = [value for name, value in SECRETS.items() if name != "account"]
    log.write_text(log.read_text() + "".join(f"0: 403 for {value} at /v1\n" for value in nameless))
    return made


def test_no_secret_of_the_launchers_files_gets_into_a_bundle(job: Simulated, tmp_path: Path) -> None:
    packed = pack(resolve(str(job.job), job.workspace), tmp_path / "b.tar.gz")
    with tarfile.open(packed.path) as tar:
        held = {m.name: f.read().decode() for m in tar.getmembers() if (f := tar.extractfile(m)) is not None}
    leaks = [(name, key) for name, text in held.items() for key, secret in SECRETS.items() if secret in text]
    assert leaks == []
    assert packed.hidden >= len(SECRETS)
    names = {Path(name).name for name in held}
    assert {"run.json", "events.jsonl"} <= names
    assert not names & {"provenance.json", "order.json", "config.yml", "spec.json", "time-limit-0"}
    assert not any(".submissions" in name or "/agent/" in name for name in held)
    log = next(text for name, text in held.items() if name.endswith(".log"))
    assert "0: 403 for *** at /v1" in log, "the line stays, the secret does not"
