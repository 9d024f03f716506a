"""The words of docs/start/glossary.md, and none of those it replaces, wherever a user looks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import trackwalker
from trackwalker.cli.commands import COMMANDS, load
from trackwalker.diagnose.causes.playbook import load_playbooks

SOURCE = Path(trackwalker.__file__).parent
ROOT = SOURCE.parents[1]
GLOSSARY = ROOT / "docs" / "start" / "glossary.md"
BANNED = re.compile(
    r"\b(?:told|reckon\w*|accus(?:e|es|ed|ing)|mend(?:s|ed|ing)?|stands? still|who holds it up|no single host"
    r"|most tokens of the model|lower quantile|missing scrape-gap|upstream's TGS|words behind it|risk: capacity)\b",
    re.IGNORECASE,
)
# Lists of words that users type; the lab, whose scenarios speak to their authors; a shell script with its variables.
NOT_SHOWN = ("agent/ask/questions.py", "agent/ask/spelling.py", "lab/", "launch/slurm/script.py")
_FIELD = re.compile(r"\{\w+\}")  # filled in before anybody reads it
# Names that are code in a page, a block of code in it, and text in a script.
_NAMES = re.compile(r"`[^`\n]*`|\b\w+(?:-\w+)+\b|\w+_\w+")
_FENCED = re.compile(r"^```(?:yaml|json|python)\n.*?^```$", re.MULTILINE | re.DOTALL)
_JS_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'])//[^\n]*", re.DOTALL)
_JS_TEXT = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`")
# Words that users type and that a question may hold; the lab's scenarios speak to their authors.
_DATA_NOT_SHOWN = ("agent/phrasings.yml", "lab/")
_IN_CODE = re.compile(r"\{[{%#].*?[}%#]\}|<style.*?</style>|<script.*?</script>|<[^>]*>", re.DOTALL)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module that can reach a user: no docstrings, no single words, which are keys."""
    silent, said = set(), []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr):
            silent.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            said.append(node)
    yield from ((node.lineno, str(node.value)) for node in said if id(node) not in silent)


def shown() -> Iterator[tuple[str, str]]:
    """Where and what: every text that a user may read."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(NOT_SHOWN):
            yield from ((f"{name}:{line}", text) for line, text in strings(path))
    for path in sorted([*SOURCE.rglob("*.j2")]):
        text = _IN_CODE.sub(" ", path.read_text()) if path.suffix == ".j2" else path.read_text()
        yield from ((f"{path.relative_to(SOURCE)}:{n}", line) for n, line in enumerate(text.splitlines(), 1))
    for book in load_playbooks():
        said = [book.title, book.summary, *(a.why for a in book.actions)]
        said += [text for test in book.tests for text in (test.says, test.clean)]
        yield from ((f"playbook {book.id}", _FIELD.sub("", text)) for text in said if text)
    for name in COMMANDS:
        command = load(name)
        below = getattr(command, "commands", {})
        for each in (command, *below.values()):
            yield f"help of {name}", each.help or ""
            yield from ((f"help of {name}", getattr(p, "help", None) or "") for p in each.params)


def pages() -> Iterator[tuple[str, str]]:
    """Lines that people read in the source tree: documentation, skills, the prose of playbooks."""
    written = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("skills/**/*.md"),
        *(ROOT / n for n in ("README.md", "AGENTS.md")),
    ]
    written += [ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *SOURCE.glob("playbooks/*.md")]
    questions = [each["ask"] for each in _read(SOURCE / "agent" / "phrasings.yml")]
    asked = re.compile("|".join(map(re.escape, questions)))  # the words of a user, not ours
    for path in sorted(set(written) - {GLOSSARY}):
        text = path.read_text()
        text = text.split("---\n", 2)[2] if path.parent.name == "playbooks" else text  # front matter: see `shown`
        text = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
        for number, line in enumerate(text.splitlines(), 1):
            ours = _NAMES.sub(" ", asked.sub(" ", line)) if BANNED.search(line) else line  # few lines are worth a look
            yield f"{path.relative_to(ROOT)}:{number}", ours


def data() -> Iterator[tuple[str, str]]:
    """Texts in data files and in the scripts of the web pages."""
    for path in sorted(SOURCE.rglob("*.yml")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(_DATA_NOT_SHOWN):
            yield from ((name, _NAMES.sub(" ", text)) for text in _texts(_read(path)))
    for path in sorted(p for p in SOURCE.rglob("*.js") if "vendor" not in p.parts):
        code = _JS_COMMENT.sub(" ", path.read_text())
        yield from ((path.name, _NAMES.sub(" ", text)) for text in _JS_TEXT.findall(code) if " " in text.strip())


def _read(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - the safe one


def _texts(value: object) -> Iterator[str]:
    """Values with more than one word, at any depth."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str) and " " in value.strip():
        yield value


def test_no_word_of_our_own_making_where_a_user_looks() -> None:
    everything = (*shown(), *pages(), *data())
    found = [f"{where}: {m[0]!r} in {text.strip()[:80]!r}" for where, text in everything if (m := BANNED.search(text))]
    assert found == []


def test_every_banned_word_is_in_the_glossary_with_the_word_for_it() -> None:
    rows = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    instead = " ".join(row.split("|")[3] for row in rows)
    for word in ("told", "reckoned", "accused", "mend", "stands still", "who holds it up", "no single host",
                 "words behind it", "upstream's TGS", "missing scrape-gap", "risk: capacity"):  # fmt: skip
        assert word in instead, word


def test_the_test_can_fail() -> None:
    assert BANNED.search("No host is accused")
    assert not BANNED.search("recommended")
    assert len(list(pages())) > 5000
    assert {where for where, _ in data()} >= {"perf/fixes.yml", "logs/signatures/memory.yml", "job.js"}
