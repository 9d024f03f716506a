"""The planted incident of bench/scale10k.py from a central store: its blocks imported into a real VictoriaMetrics.

Everything lies there under our own names, as recorders send it with --remote-write; the diagnosis borrows it
(`diagnose --metrics`) instead of reading the job's own recording. vmctl, of the same package, does the import.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from trackwalker.diagnose.elsewhere import with_metrics
from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.telemetry.foreign.names import load_maps
from trackwalker.telemetry.foreign.remote import Access

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from slurm_cluster import free_ports
from usage import cpu_seconds, family, peak_mb, reset_peak
from victoria import PASSWORD, USER, Victoria, find_victoria

Roots = dict[str, list[str]]


def measure(job: Path, samples: int, right: Callable[[Roots, Roots], bool], most_s: float, most_mb: float) -> bool:
    """Import, borrow, diagnose; whether the verdict is right and the limits hold."""
    with tempfile.TemporaryDirectory(prefix="scale-victoria-") as name:
        folder = Path(name)
        for block in (meta.parent for meta in sorted((job / "prometheus").rglob("meta.json"))):
            shutil.copytree(block, folder / "snapshot" / block.name)
        binary = find_victoria()
        store = Victoria(binary, folder, free_ports(1)[0])
        store.start()
        try:
            began = time.perf_counter()
            _import(binary.with_name("vmctl"), folder / "snapshot", store.url)
            print(f"{samples / 1e6:.0f} M samples imported in {time.perf_counter() - began:.0f} s", flush=True)
            login = folder / "store.auth"
            login.touch(0o600)
            login.write_text(f"basic {USER}:{PASSWORD}\n")
            began, before, theirs = time.perf_counter(), cpu_seconds([os.getpid()]), family(os.getpid())[1:]
            stored = cpu_seconds(theirs)
            reset_peak()
            found = resolve(str(job), job.parent)
            with with_metrics(found, Access(store.url, login), None, (None, None), load_maps()) as borrowed:
                read, own = time.perf_counter() - began, cpu_seconds([os.getpid()]) - before
                told = f"CPU {own:.1f} s with its readers, the store's {cpu_seconds(theirs) - stored:.1f} s"
                print(f"{borrowed.says}\nread in {read:.1f} s ({told})", flush=True)
                began, cpu = time.perf_counter(), time.process_time()
                verdict = diagnose(borrowed.job).verdict
            took, own = time.perf_counter() - began, time.process_time() - cpu
            peak, held = peak_mb(os.getpid()), sum(map(peak_mb, theirs))
        finally:
            store.stop()
    roots = {cause.cause: list(cause.hosts) for cause in verdict.roots}
    truth = json.loads((job.parent.parent / "truth.json").read_text())
    good = right(roots, {root["cause"]: root["hosts"] for root in truth["roots"]})
    told = ", ".join(f"{cause} on {len(hosts)} hosts" for cause, hosts in roots.items())
    print(f"diagnosed in {took:.1f} s (CPU {own:.1f} s): {told}")
    memory = f"{peak:.0f} MB (at most {most_mb:g}), the store's {held:.0f} MB"
    print(f"{read + took:.1f} s in all (at most {most_s:g}); {memory}")
    good &= read + took <= most_s and peak <= most_mb
    print("PASS" if good else "FAIL", "through VictoriaMetrics: the planted causes on their hosts, no other")
    return good


def _import(vmctl: Path, snapshot: Path, url: str) -> None:
    login = [f"--vm-user={USER}", f"--vm-password={PASSWORD}"]
    argv = [vmctl, "prometheus", "-s", f"--prom-snapshot={snapshot}", f"--vm-addr={url}", "--vm-concurrency=8", *login]
    # It asks for a terminal even to draw no progress bar.
    subprocess.run(["script", "-qec", shlex.join(map(str, argv)), "/dev/null"], check=True, stdout=subprocess.PIPE)
    asked = urllib.request.Request(f"{url}/internal/force_flush")  # noqa: S310 - loopback
    asked.add_header("Authorization", f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}")
    urllib.request.urlopen(asked, timeout=60).read()  # noqa: S310
