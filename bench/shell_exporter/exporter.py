"""A metrics exporter as many sites have one: bash plugins by turns, their text in a file, a small HTTP server.

Usage: exporter.py PORT INTERVAL_S (the tree to read stands in SYSFS)
"""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
page = b""


def collect(interval_s: float) -> None:
    """Run all plugins, publish what they printed, and again."""
    global page
    due = time.monotonic()
    while True:
        texts = [
            subprocess.run(["bash", str(plugin), "node0000"], capture_output=True, check=False).stdout
            for plugin in sorted(HERE.glob("*_metrics_plugin.sh"))
        ]
        page = b"".join(texts)
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


class Handler(http.server.BaseHTTPRequestHandler):
    """Every path is the page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    threading.Thread(target=collect, args=(float(sys.argv[2]),), daemon=True).start()
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
