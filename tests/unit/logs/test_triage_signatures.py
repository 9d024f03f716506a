"""Every signature finds two independent texts; harmless patterns alone are no failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from triage_logs import triage_text

from trackwalker.job.yaml_files import read_yaml
from trackwalker.logs.failures.signatures import load
from trackwalker.logs.formats.dialect import NEEDLES
from trackwalker.logs.scanning.index import _LONGER
from trackwalker.logs.scanning.lines import parse
from trackwalker.logs.scanning.needles import SHORTEST

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from patterns import decided, redundant, rules

DATA = Path(__file__).parents[2] / "data" / "triage"
TEXTS: dict[str, str] = read_yaml((DATA / "texts.yml").read_text())
HELD_OUT: dict[str, str] = read_yaml((DATA / "held_out.yml").read_text())
SAID: dict[str, list[str]] = read_yaml((DATA / "said.yml").read_text())
HARMLESS: dict[str, list[str]] = read_yaml((DATA / "harmless.yml").read_text())


def test_every_signature_has_both_texts() -> None:
    # What dumps, steps and the order of lines say is no line of a log.
    ids = {s.id for s in load().by_id.values() if not s.dumps} - {"slower", "after-the-end", "gpu-shared"}
    assert ids == set(TEXTS) == set(HELD_OUT)
    assert all(TEXTS[i] != HELD_OUT[i] for i in ids)


def test_all_classes_of_the_spec_are_there() -> None:
    named = {s.fc for s in load().by_id.values()}
    computed = {14, 25, 28, 30}  # hang, degradation, unknown death, soft success: from progress, not from a line
    assert {f"FC-{n:02d}" for n in range(1, 45) if n not in computed} <= named
    assert {f"HP-{n:02d}" for n in range(1, 18)} <= set(load().harmless)


def test_every_harmless_pattern_has_two_texts() -> None:
    assert set(HARMLESS) == set(load().harmless)
    assert [name for name, texts in HARMLESS.items() if len(set(texts)) < 2] == []


def test_no_pattern_is_covered_by_another_of_its_class() -> None:
    assert [(rule.owner, rule.name, other.name) for rule, other in redundant(rules(load()))] == []


def test_every_pattern_decides_a_case() -> None:
    cases = decided(load())
    assert [(rule.owner, rule.name) for rule in rules(load()) if rule.number not in cases] == []


def test_a_signature_finds_what_programs_say() -> None:
    signatures = load()
    missed = []
    for name, lines in SAID.items():
        own = tuple(number for number, rule in enumerate(signatures.rules) if rule.owner == name)
        for line in lines:
            body = parse(line.encode())
            assert body is not None
            found, harmless = signatures.match(body, own)
            if name not in [*(s.id for s in found), *harmless]:
                missed.append((name, line))
    assert missed == []


def test_a_code_is_known_in_every_spelling() -> None:
    signatures = load()
    said = {
        "storage-full": ["OSError: [Errno 28] x", "write: os error 28", "fsync failed: ENOSPC", "(errno: 122 - x)"],
        "segfault": ["CUDA failure 700", "hipErrorIllegalAddress", "CUDA error 716: x"],
        "storage-rate-limit": ["HTTP Error 429: x", "server replied with status code 429", "429 Too Many Requests"],
        "xid-hardware": ["NVRM: Xid (PCI:0000:b3:00): 79, x", "dcgm: Xid error 94", "previous Xid 48"],
    }
    for name, lines in said.items():
        for line in lines:
            body = parse(line.encode())
            assert body is not None
            found, _ = signatures.match(body, tuple(range(len(signatures.rules))))
            assert name in [s.id for s in found], line


def test_every_signature_says_what_to_do() -> None:
    assert [s.id for s in load().by_id.values() if not s.next] == []


@pytest.mark.parametrize("source", ["written", "held out"])
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_signature_finds_its_text(tmp_path: Path, name: str, source: str) -> None:
    text = (TEXTS if source == "written" else HELD_OUT)[name]
    found = triage_text(tmp_path, f"starting\n{text}\nlast words\n")
    assert name in [f.id for f in found.roles.findings], text
    hit = next(f for f in found.roles.findings if f.id == name)
    assert hit.line == 2
    if load().by_id[name].order <= 5:
        assert found.primary is not None
        assert found.primary.id == name


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in HARMLESS.items() for t in texts])
def test_a_harmless_line_is_no_failure(tmp_path: Path, name: str, text: str) -> None:
    found = triage_text(tmp_path, f"starting\n{text}\n")
    assert found.primary is None, text
    assert found.roles.findings == []


def test_all_harmless_lines_together_are_no_failure(tmp_path: Path) -> None:
    found = triage_text(tmp_path, "\n".join(t for texts in HARMLESS.values() for t in texts) + "\n")
    assert found.primary is None
    assert set(found.index.harmless) >= {f"HP-{n:02d}" for n in range(1, 18)}


def test_the_fact_readers_needles_are_all_scanned_for() -> None:
    assert all(len(n) >= SHORTEST or n in _LONGER for n in NEEDLES)


@pytest.mark.parametrize(
    "word", ["ValueError: num_heads ", "SW Power Cap ", "checkpoint key ", "NVLink ", "rdma link down "]
)
def test_a_line_without_end_stays_cheap(tmp_path: Path, word: str) -> None:
    """An expression looks at a window around its literal: on the whole line these take minutes."""
    found = triage_text(tmp_path, f"starting\n{word * 4000}{'a' * 40_000}\nlast words\n")
    assert found.index.lines == 3
