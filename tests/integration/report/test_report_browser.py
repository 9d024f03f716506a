"""The HTML report in a real browser: nothing runs, nothing overflows, no label covers another, dark is dark."""

from __future__ import annotations

import html
import importlib
import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from trackwalker.report.html import render_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]

# Only the test's copy of a page carries this script (and loses its CSP for it): it measures what the page cannot.
PROBE = """<script>
addEventListener("load", () => {
  const covered = [];
  for (const plot of document.querySelectorAll("svg.plot")) {
    const texts = [...plot.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
    const frame = plot.getBoundingClientRect();
    texts.forEach(([a, r], i) => {
      if (r.left < frame.left - 1 || r.right > frame.right + 1) covered.push(a + " leaves the drawing");
      texts.slice(i + 1).forEach(([b, s]) => {
        if (r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 3 && s.top < r.bottom - 3)
          covered.push(a + " | " + b);
      });
    });
  }
  const page = document.documentElement;
  const wide = page.scrollWidth > page.clientWidth + 1;
  const holder = document.createElement("pre");
  holder.id = "probe";
  holder.textContent = JSON.stringify({covered, wide, plots: document.querySelectorAll("svg.plot").length});
  document.body.append(holder);
});
</script></body>"""


def samples() -> dict[str, object]:
    """The stories of the unit tests; they live beside them."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))
    try:
        made: dict[str, object] = importlib.import_module("test_report_samples_more").SAMPLES
    finally:
        sys.path.pop(0)
    return made


def chromium(profile: Path, page: Path, *flags: str) -> str:
    base = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]
    quiet = [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
    ]
    done = subprocess.run(
        [*base, *quiet, *flags, page.as_uri()], capture_output=True, text=True, encoding="utf-8", timeout=60, check=True
    )
    return done.stdout


def write(folder: Path, name: str) -> tuple[Path, str]:
    text = render_html(*samples()[name]())  # type: ignore[operator]
    page = folder / f"{name}.html"
    page.write_text(text, encoding="utf-8")
    return page, text


@pytest.mark.parametrize(("name", "width", "plots"), [("rdma", 1280, 4), ("killed", 1280, 4), ("nasty", 600, 4)])
def test_layout_holds(tmp_path: Path, name: str, width: int, plots: int) -> None:
    page, text = write(tmp_path, name)
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", PROBE)
    page.write_text(text, encoding="utf-8")
    dom = chromium(tmp_path / "profile", page, "--dump-dom", f"--window-size={width},2000")
    found = json.loads(html.unescape(re.findall(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)[-1]))
    assert found == {"covered": [], "wide": False, "plots": plots}


def test_hostile_text_does_nothing(tmp_path: Path) -> None:
    page, _ = write(tmp_path, "nasty")
    dom = chromium(tmp_path / "profile", page, "--dump-dom", "--window-size=1280,2000")
    assert "<title>Incident: job " in dom
    assert not re.search(r"<(script|img|iframe|object)\b", dom)
    assert not re.search(r"<[^>]*\son\w+=", re.sub(r'"[^"]*"', '""', dom))
    assert "</html>" in dom


@pytest.mark.parametrize(("scheme", "ground"), [(1, (0xF6, 0xF7, 0xF8)), (0, (0x14, 0x17, 0x1B))])
def test_light_and_dark(tmp_path: Path, scheme: int, ground: tuple[int, int, int]) -> None:
    page, _ = write(tmp_path, "hang")
    shot = tmp_path / "shot.png"
    colours = f"--blink-settings=preferredColorScheme={scheme}"
    chromium(
        tmp_path / "profile", page, colours, "--hide-scrollbars", f"--screenshot={shot}", "--window-size=1280,2000"
    )
    data = shot.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1280, 2000)
    start = data.index(b"IDAT") + 4
    size = struct.unpack(">I", data[start - 8 : start - 4])[0]
    row = zlib.decompressobj().decompress(data[start : start + size], 4)
    assert tuple(row[1:4]) == ground  # the first pixel stands behind its filter byte, whatever the filter
    assert len(data) > 30_000  # and something is drawn
