"""Drop-in plugins: any `*_metrics_plugin.*` in a folder is run on a schedule and prints exposition text.

Upstream's contract is kept: the host name is the argument, exit code 99 means never again, a last line `# STATE x`
comes back as `_PLUGIN_STATE` next time, a STATE alone repeats the last samples, `# STATE __NONE__` forgets them.
Unlike upstream, a plugin that fails, hangs or prints half a line publishes nothing, and is named.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from trackwalker.job.trust import distrust
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.exporter.server import Exporter
from trackwalker.node.sensors.commands import ask

_NEVER_AGAIN = 99
_LOOK_EVERY_S = 2.0
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+(-?\d+))?")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


class PluginError(Exception):
    """The plugin failed; its message is for the agent's log."""


class PluginCollector:
    """One plugin file as a collector."""

    def __init__(self, path: Path, node: str, interval_s: float, say: Callable[[str], None]) -> None:
        self.name = f"plugin:{path.name}"
        self.retired = False
        self._path, self._node, self._say = path, node, say
        self._seconds = interval_s  # it has until its next turn
        self._state = ""
        self._kept: list[Family] = []
        self._complaint = ""

    def collect(self) -> list[Family]:
        """Run the plugin once; what it printed, or what it said to keep."""
        if self.retired:
            return []
        try:
            return self._run()
        except PluginError as e:
            if str(e) != self._complaint:
                self._complaint = str(e)
                self._say(f"{self.name}: {e}")
            raise

    def _run(self) -> list[Family]:
        code, out, err = run_plugin(self._path, self._node, self._state, self._seconds)
        if code == _NEVER_AGAIN:
            self.retired = True
            self._say(f"{self.name}: asked never to be run again")
            return []
        if code != 0:
            said = err.strip().splitlines()
            raise PluginError(f"exit code {code}: {said[-1][:200] if said else 'no message'}")
        body, state = _split_state(out)
        families = parse_exposition(body)
        if state is not None:
            self._state = state
            if state.startswith("__NONE__"):
                self._kept = []
            elif not families:
                return self._kept
            else:
                self._kept = families
        self._complaint = ""
        return families


class PluginFolder:
    """Follows a folder: new files are taken in, removed ones let go, changed ones run anew, all while running."""

    def __init__(
        self, folder: Path, node: str, exporter: Exporter, say: Callable[[str], None], interval_s: float = 10.0
    ) -> None:
        self._folder, self._node, self._exporter, self._say = folder, node, exporter, say
        self._interval_s = interval_s
        self._known: dict[Path, tuple[int, int]] = {}
        self._refused: set[str] = set()
        self._stop = threading.Event()

    def start(self) -> None:
        """Look now and every two seconds from a thread."""
        threading.Thread(target=self._follow, name="plugins", daemon=True).start()

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(_LOOK_EVERY_S)

    def look(self) -> None:
        """Bring the exporter in line with the folder."""
        found: dict[Path, tuple[int, int]] = {}
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*_metrics_plugin.*")):
                stat = path.stat()
                if not self._ours(path):
                    continue
                if path.suffix == ".sh" or os.access(path, os.X_OK):
                    found[path] = (stat.st_mtime_ns, stat.st_size)
        for path, mark in self._known.items():
            if found.get(path) != mark:
                self._exporter.remove(f"plugin:{path.name}")
        for path, mark in found.items():
            if self._known.get(path) != mark:
                plugin = PluginCollector(path, self._node, self._interval_s, self._say)
                self._exporter.add(plugin, self._interval_s)
        self._known = found

    def _ours(self, path: Path) -> bool:
        """A plugin runs with our rights and our tokens: only what nobody else could have written is run."""
        # The folder above is the job directory, which was judged when it was opened, or one that the user named.
        why = distrust(path, self._folder.parent, friend=self._folder.parent.stat().st_uid)
        if why and why not in self._refused:
            self._refused.add(why)
            self._say(f"plugin {path.name} is not run: {why}")
        return not why


def run_plugin(path: Path, node: str, state: str, seconds: float) -> tuple[int, str, str]:
    """Run a plugin in a session of its own; one that outstays its time is ended with all it started."""
    argv = ["bash", str(path), node] if path.suffix == ".sh" else [str(path), node]
    env = {**os.environ, "_PLUGIN_STATE": state, "POLL_INTERVAL": str(max(1, int(seconds)))}
    answer = ask(argv, seconds, env)
    if answer.unstarted:
        raise PluginError(f"cannot be run: {answer.unstarted}")
    if answer.code is None:
        raise PluginError(f"no answer within {seconds:g} s")
    return answer.code, answer.output, answer.error


def parse_exposition(text: str) -> list[Family]:
    """Families of an exposition text; one bad line spoils all of it, because half a text cannot be trusted."""
    families: dict[str, Family] = {}
    if text and not text.endswith("\n"):
        raise PluginError("the last line is cut off")
    for line in text.splitlines():
        words = line.split(None, 3)
        if not words:
            continue
        if words[0] == "#":
            if len(words) >= 3 and words[1] in ("HELP", "TYPE") and _NAME.fullmatch(words[2]):
                family = families.setdefault(words[2], Family(words[2], "gauge", ""))
                rest = words[3] if len(words) > 3 else ""
                if words[1] == "HELP":
                    family.help = rest
                else:
                    family.kind = rest if rest in ("gauge", "counter") else "gauge"
            continue
        match = _SAMPLE.fullmatch(line.strip())
        if not match:
            raise PluginError(f"not a sample: {line[:80]!r}")
        name, labels, value, stamp = match.groups()
        try:
            number = float(value)
        except ValueError:
            raise PluginError(f"not a number: {line[:80]!r}") from None
        family = families.setdefault(name, Family(name, "gauge", ""))
        family.samples.append((_labels(labels or "", line), number, int(stamp) / 1000 if stamp else None))
    return [f for f in families.values() if f.samples]


def _labels(text: str, line: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        match = _LABEL.match(text, at)
        if not match:
            raise PluginError(f"bad labels: {line[:80]!r}")
        labels[match[1]] = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), match[2])
        at = match.end()
    return labels


def _split_state(out: str) -> tuple[str, str | None]:
    lines = out.rstrip("\n").rsplit("\n", 1)
    if lines[-1].startswith("# STATE "):
        return (lines[0] + "\n" if len(lines) > 1 else ""), lines[-1][len("# STATE ") :]
    return out, None
