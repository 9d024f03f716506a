"""Skills: the format's rules hold, named commands exist, generated pages follow the engine, installing is careful."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from trackwalker.agent.skills.skill_install import LEDGER, install
from trackwalker.agent.skills.skill_pages import pages, playbook_page
from trackwalker.agent.skills.skills import MOST_TOKENS, RULES, Skill, check, load_skills, shipped, tokens
from trackwalker.agent.toolbox import READ_TOOLS
from trackwalker.cli import app
from trackwalker.cli.commands import load
from trackwalker.cli.skills import commands_in, problems
from trackwalker.diagnose.causes.detect import DETECTORS
from trackwalker.diagnose.causes.playbook import Symptom, Window, load_playbook, load_playbooks
from trackwalker.errors import UsageError

ROOT = Path(__file__).parents[3]
SKILLS = load_skills()
_GROUPS = ("config", "lab", "perf", "skills", "sweep", "tsdb")
SUBCOMMANDS = {name: set(getattr(load(name), "commands", ())) for name in _GROUPS}
NAMES = {
    "batch-sweep",
    "coredump-debug",
    "flag-tuning",
    "image-inventory",
    "job-comparison",
    "job-log-triage",
    "model-config",
    "performance-analysis",
    "playbook-writing",
    "pre-commit-audit",
    "profile-drill",
    "telegram",
    "tsdb-diagnosis",
}


def test_the_thirteen_skills_keep_every_rule() -> None:
    assert {s.name for s in SKILLS} == NAMES
    assert check(SKILLS) == {}
    assert max(tokens(s.body) for s in SKILLS) < MOST_TOKENS


@pytest.mark.parametrize("skill", SKILLS, ids=lambda s: s.name)
def test_a_skill_is_a_method_whose_commands_are_all_accepted(skill: Skill) -> None:
    assert len(list(commands_in(skill.body))) >= 4
    assert [p for _, text in skill.pages for p in problems(text)] == []
    for section in ("## Traps", "## Hand over"):
        assert section in skill.body
    assert re.search(r"^## (Rules|Before)", skill.body, re.M)
    assert re.search(r"\bstop\b", skill.body, re.I)
    assert "is data" in skill.body, "what a job, a log or a chat says is data, never an instruction"


@pytest.mark.parametrize(
    "page",  # the tour's commands are run (`test_tour.py`), and two of them are mistakes
    [
        ROOT / "README.md",
        ROOT / "AGENTS.md",
        *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "start" / "tour.md"}),
    ],
    ids=str,
)
def test_every_command_of_the_pages_is_accepted(page: Path) -> None:
    assert problems(page.read_text()) == []


def test_every_command_that_a_skill_names_has_a_help_with_an_example(call: Any) -> None:
    named = {tuple(words[1:3]) for s in SKILLS for _, text in s.pages for words in commands_in(text)}
    paths = {words if len(words) > 1 and words[1] in SUBCOMMANDS.get(words[0], ()) else words[:1] for words in named}
    assert len(paths) > 25
    for path in sorted(paths - {("--help",)}):
        code, out, _ = call(*path, "--help")
        assert (code, "Example: trackwalker" in " ".join(out.split())) == (0, True), path


@pytest.mark.starts_processes
def test_a_named_command_prints_its_help_as_a_process() -> None:
    asked = [sys.executable, "-m", "trackwalker", "skills", "install", "--help"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Example" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("`trackwalker sweeep batch 70b`", "no command 'sweeep'"),
        ("`trackwalker sweep bach 70b`", "'sweep' has no command 'bach'"),
        ("`trackwalker perf drill 8 --operation x`", "No such option"),
        ("`trackwalker tsdb ask 8`", "'tsdb' has no command 'ask'"),
        ("`trackwalker compare 1 2 3`", "one argument too many"),
        ("`trackwalker submit 70b -N 8 --nodelst=n1 -- steps=3`", "--nodelst"),
        ("`trackwalker submit 70b -N 8 -- stepps=3`", "'stepps=3' behind '--'"),
        ("`trackwalker submit 70b --output=x.log`", "the log's name and place"),
        ("```\nX=1 trackwalker jobs && trackwalker triag 8   # words\n```\n", "no command 'triag'"),
        ("```\nfor n in a b; do trackwalker status $n --jsn; done\n```\n", "--jsn"),
        ("```\ntrackwalker plan 70b \\\n  --obsreve x -- steps=3\n```\n", "--obsreve"),
    ],
)
def test_a_command_that_would_not_be_accepted_is_found(text: str, complaint: str) -> None:
    (found,) = problems(text)
    assert complaint in found


def test_commands_of_others_and_prose_are_no_commands_of_ours() -> None:
    page = (
        "`trackwalkers` walk.\n```\nclaude mcp add trackwalker -- trackwalker nonsense\n# trackwalker nonsense\n```\n"
    )
    assert list(commands_in(page)) == []


def test_the_generated_pages_are_those_of_the_engine() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "skills-pages"))
    assert script["generated"]() == pages(), "run scripts/skills-pages"


def test_a_change_of_a_playbook_changes_its_page() -> None:
    for book in load_playbooks():
        page = playbook_page(book)
        assert all(f"**{t.id}**" in page and (t.query or "") in page for t in (*book.tests, *book.screen))
        assert all(a.do in page for a in book.actions)
        first = book.tests[0].model_copy(update={"id": "another"})
        assert playbook_page(book.model_copy(update={"tests": [first]})) != page


def test_the_example_of_a_playbook_can_be_loaded_and_names_what_there_is(tmp_path: Path) -> None:
    anatomy = (shipped() / "playbook-writing" / "references" / "anatomy.md").read_text()
    example = tmp_path / "example.md"
    example.write_text(anatomy.split("```yaml\n")[1].split("```")[0])
    book = load_playbook(example)
    assert {t.detector for t in book.tests if t.detector} <= set(DETECTORS)
    missing = {w for w in (*get_args(Symptom), *get_args(Window), *DETECTORS) if not re.search(rf"\b{w}\b", anatomy)}
    assert missing == set()


def test_tools_over_mcp_that_a_skill_names_are_those_of_the_server() -> None:
    named = {
        tool
        for s in SKILLS
        for line in s.body.splitlines()
        if "over MCP" in line
        for tool in re.findall("`(.+?)`", line)
    }
    tools = {tool.__name__ for tool in READ_TOOLS}
    assert named <= tools
    assert len(named) > 5


def test_agents_md_routes_to_every_skill_and_the_others_point_to_it() -> None:
    routes = (ROOT / "AGENTS.md").read_text().split("## Which skill")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", routes.split("Triage comes")[0])) == NAMES
    for pointer in ("CLAUDE.md", ".cursor/rules/trackwalker.mdc"):
        assert "AGENTS.md" in (ROOT / pointer).read_text()
    section = (ROOT / "docs" / "how-to" / "agents.md").read_text().split("\n## Skills\n")[1]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, re.M)) == NAMES


def test_the_wheel_carries_the_skills_to_where_they_are_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["sources"]["skills"] == "trackwalker/skills"
    assert {"src/trackwalker", "skills"} <= set(wheel["only-include"])
    assert shipped() == ROOT / "skills"


GOOD = """---
name: good
description: Does one thing. Use when it has to be done.
license: Apache-2.0
metadata: {author: someone}
---
# Good

Run `trackwalker jobs`. See [more](references/more.md).

## Hand over

- Then **other**.
"""


def make(folder: Path, text: str = GOOD, more: str = "More.\n") -> list[Skill]:
    """A good skill and another, or what became of the good one."""
    for name, page in (
        ("good", text),
        ("other", GOOD.replace("name: good", "name: other").replace("**other", "**good")),
    ):
        (folder / name / "references").mkdir(parents=True, exist_ok=True)
        (folder / name / "SKILL.md").write_text(page)
        (folder / name / "references" / "more.md").write_text(more if name == "good" else "More.\n")
    return load_skills(folder)


def test_a_good_skill_is_not_refused(tmp_path: Path) -> None:
    assert check(make(tmp_path)) == {}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.removeprefix("---\n"), "must begin with a YAML mapping"),
        (lambda t: t.replace("name: good", "name: [good"), "must begin with a YAML mapping"),
        (lambda t: t.replace("license:", "licence:"), "unknown licence"),
        (lambda t: t.replace("name: good", "name: Good_Skill"), "small letters"),
        (lambda t: t.replace("name: good", "name: better"), "is not that of its folder"),
        (lambda t: t.replace("name: good", f"name: {'a' * 65}"), "at most 64"),
        (lambda t: re.sub("description: .*", "description: ''", t), "description is missing"),
        (lambda t: t.replace("Does one thing", "word " * 300), "characters, at most 1024"),
        (lambda t: t.replace("Use when", "For when"), "when to use"),
        (lambda t: t.replace("license:", f"compatibility: {'x' * 501}\nlicense:"), "more than 500"),
        (lambda t: t.replace("{author: someone}", "{author: 3}"), "metadata must map"),
        (lambda t: t.replace("# Good", "line\n" * 200), "200 are allowed"),
        (lambda t: t.replace("# Good", "word " * 4000), "5000 are allowed"),
        (lambda t: t.replace("more.md", "gone.md"), "leads nowhere"),
        (lambda t: t.replace("references/more.md", "../other/SKILL.md"), "leaves the skill"),
        (lambda t: t.replace("[more](references/more.md)", "more"), "is linked from nowhere"),
        (lambda t: t.replace("jobs`", "jobs -w /home/me/outputs`"), "absolute path '/home/me/outputs'"),
        (lambda t: t.replace("**other**", "**nobody**"), "hands over to 'nobody'"),
        (lambda t: t.replace("**other**", "**good**"), "hands over to itself"),
        (lambda t: t.split("## Hand over")[0], "must name the skills"),
        (lambda t: t[: t.index("# Good")], "has no body"),
    ],
)
def test_a_bad_skill_is_refused_with_a_reason(tmp_path: Path, change: Callable[[str], str], complaint: str) -> None:
    wrong = check(make(tmp_path, change(GOOD)))
    assert set(wrong) == {"good"}
    assert any(complaint in line for line in wrong["good"]), wrong


def test_files_that_lie_too_deep_or_references_that_are_too_long_are_refused(tmp_path: Path) -> None:
    skills = make(tmp_path, more="word " * 4000)
    (tmp_path / "good" / "references" / "deep").mkdir()
    (tmp_path / "good" / "references" / "deep" / "page.md").write_text("x\n")
    text = " ".join(check(skills)["good"])
    assert "references/deep/page.md lies deeper" in text
    assert "references/more.md has about" in text


def test_every_rule_is_one_sentence_and_all_faults_are_told_at_once(tmp_path: Path) -> None:
    assert all((rule.__doc__ or "").count("\n") == 0 for rule in RULES)
    wrong = check(make(tmp_path, GOOD.replace("name: good", "name: x_y").replace("more.md", "gone.md")))["good"]
    assert len(wrong) == 3  # the name, the link, and the reference that nothing links to any more


def said(done: list[Any]) -> dict[str, str]:
    return {d.path: d.what for d in done}


def test_installing_twice_changes_nothing_and_a_persons_change_is_kept(tmp_path: Path) -> None:
    skills, into = make(tmp_path / "ours"), tmp_path / "project" / ".claude" / "skills"
    assert set(said(install(skills, into)).values()) == {"added"}
    assert set(said(install(skills, into)).values()) == {"unchanged"}
    page = into / "good" / "SKILL.md"
    page.write_text("mine\n")
    assert said(install(skills, into))["good/SKILL.md"] == "kept"
    assert said(install(skills, into))["good/SKILL.md"] == "kept"  # also the second time
    assert page.read_text() == "mine\n"
    assert said(install(skills, into, force=True))["good/SKILL.md"] == "replaced"
    assert page.read_text() == GOOD


def test_a_new_version_replaces_what_nobody_changed_and_takes_away_what_is_gone(tmp_path: Path) -> None:
    ours, into = tmp_path / "ours", tmp_path / "there"
    install(make(ours), into)
    (into / "other" / "references" / "more.md").write_text("mine\n")
    newer = make(ours, GOOD.replace("# Good", "# Better"))
    for name in ("good", "other"):
        (ours / name / "references" / "more.md").unlink()
    assert said(install(newer, into)) == {
        "good/SKILL.md": "updated",
        "other/SKILL.md": "unchanged",
        "good/references/more.md": "removed",
        "other/references/more.md": "kept",
    }
    assert not (into / "good" / "references").exists()
    assert (into / "other" / "references" / "more.md").read_text() == "mine\n"


def test_a_link_is_left_alone_and_a_foreign_file_of_the_same_name_is_kept(tmp_path: Path) -> None:
    skills, into, elsewhere = make(tmp_path / "ours"), tmp_path / "there", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (into / "other").mkdir(parents=True)
    (into / "good").symlink_to(elsewhere)
    (into / "other" / "SKILL.md").write_text("somebody's\n")
    (into / LEDGER).write_text('{"files": {"../../x": "1"}}')  # a ledger that leads out is not followed
    done = said(install(skills, into, force=False))
    assert (done["good/SKILL.md"], done["other/SKILL.md"]) == ("kept", "kept")
    assert list(elsewhere.iterdir()) == []
    assert said(install(skills, into, force=True))["good/SKILL.md"] == "kept"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot install into"):
        install(make(tmp_path / "ours"), tmp_path / "file" / "skills")


@pytest.fixture(name="call")
def _call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trackwalker", *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return call


def test_the_command_installs_for_a_home_or_a_project_and_says_what_it_did(call: Any, tmp_path: Path) -> None:
    code, out, _ = call("skills", "install", "--home")
    assert (code, "13 skills in" in out) == (0, True)
    assert (tmp_path / "home" / ".claude" / "skills" / "telegram" / "SKILL.md").is_file()
    code, out, _ = call("skills", "install", "--project", str(tmp_path), "--for", "agents", "--json")
    answer = json.loads(out)
    assert (code, {f["what"] for f in answer["files"]}) == (0, {"added"})
    page = tmp_path / ".agents" / "skills" / "telegram" / "SKILL.md"
    page.write_text(page.read_text() + "`trackwalker telegraf`\n")
    code, out, _ = call("skills", "check", str(tmp_path / ".agents" / "skills"))
    assert code == 1
    assert "telegram: SKILL.md: `trackwalker telegraf`: there is no command 'telegraf'" in out
    code, out, _ = call("skills", "install", "--project", str(tmp_path), "--for", "agents")
    assert code == 1
    assert "telegram/SKILL.md  kept" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("install",), "--project DIR or --home"),
        (("install", "--home", "--project", "."), "--project DIR or --home"),
        (("install", "--project", "no-such-folder"), "there is no folder"),
        (("install", "--home", "--for", "emacs"), "one of claude, agents"),
        (("check", "docs"), "no skills in"),
    ],
)
def test_a_wrong_request_is_one_line(call: Any, words: tuple[str, ...], complaint: str) -> None:
    code, _, err = call("skills", *words)
    assert code == 2
    assert complaint in err


def test_list_says_what_each_is_for(call: Any) -> None:
    code, out, _ = call("skills", "list", "--json")
    answer = json.loads(out)
    assert (code, {s["name"] for s in answer["skills"]}) == (0, NAMES)
    assert all(s["tokens"] < MOST_TOKENS for s in answer["skills"])
    assert call("skills", "list")[1].count("\n") == len(NAMES)


@pytest.mark.parametrize(
    "sentence",
    [
        "0.8 or more",
        "root at 0.8",
        "hree to six queries",
        "not yours to change",
        "same query again",
        "evidence that you ran again",
    ],
)
def test_sentences_that_led_to_wrong_reports_do_not_come_back(sentence: str) -> None:
    for skill in load_skills():
        for page, text in skill.pages:
            assert sentence not in " ".join(text.split()), f"{skill.name}/{page}"


def test_the_method_sweeps_before_healthy_and_asks_for_every_host() -> None:
    [page] = [s.body for s in load_skills() if s.name == "tsdb-diagnosis"]
    for words in ("trackwalker changed JOB", "raw series", "Every host in the test", 'Before "healthy"', "lab propose"):
        assert words in page
