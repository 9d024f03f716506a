"""`trackwalker skills`: methods for AI agents; list them, put them where an agent finds them, check them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.agent.skill_install import FOLDERS, Done
from trackwalker.agent.skill_install import install as install_skills
from trackwalker.agent.skills import check as check_skills
from trackwalker.agent.skills import load_skills, tokens
from trackwalker.cli.options import AsJson
from trackwalker.cli.skill_commands import problems
from trackwalker.errors import UsageError

SCHEMA = "trackwalker.skills/1"
_SAYS = {
    "added": "added",
    "updated": "updated: it was ours and unchanged",
    "replaced": "replaced: --force",
    "removed": "removed: we no longer ship it",
    "kept": "kept: it was changed here, or is a link; --force replaces changed files",
}

app = typer.Typer(
    no_args_is_help=True,
    help="List the skills (methods that AI agents follow), install them, check them.",
    epilog="Example: trackwalker skills install --project .",
)


@app.command("list", epilog="Example: trackwalker skills list --json")
def list_skills(as_json: AsJson = False) -> int:
    """Which skills there are, and what each is for."""
    skills = load_skills()
    if as_json:
        rows = [{"name": s.name, "description": s.description, "tokens": tokens(s.body)} for s in skills]
        print(json.dumps({"schema": SCHEMA, "skills": rows}, indent=1))
        return 0
    wide = max(len(s.name) for s in skills)
    for skill in skills:
        print(f"{skill.name:<{wide}}  {skill.description.partition('. ')[0].rstrip('.')}")
    return 0


@app.command(epilog="Example: trackwalker skills install --project . ; trackwalker skills install --home --for agents")
def install(
    project: Annotated[Path | None, typer.Option("--project", help="For everybody who works in this folder.")] = None,
    home: Annotated[bool, typer.Option("--home", help="For you, in every project.")] = False,
    agent: Annotated[
        str,
        typer.Option("--for", help="claude: .claude/skills (Claude Code, Cursor); agents: .agents/skills (others)."),
    ] = "claude",
    force: Annotated[bool, typer.Option("--force", help="Replace files that were changed there.")] = False,
    as_json: AsJson = False,
) -> int:
    """Put the skills where an agent finds them; a file that was changed there is kept and named.

    Exit codes: 0 all are there as shipped, 1 a changed file was kept, 2 it could not be done.
    """
    if (project is None) is not home:
        raise UsageError("say where: --project DIR or --home, one of them")
    if agent not in FOLDERS:
        raise UsageError(f"--for {agent}: it is one of {', '.join(FOLDERS)}")
    base = Path.home() if project is None else project.expanduser()
    if not base.is_dir():
        raise UsageError(f"there is no folder {base}")
    into = base / FOLDERS[agent]
    skills = load_skills()
    done = install_skills(skills, into, force)
    if as_json:
        rows = [{"path": d.path, "what": d.what} for d in done]
        print(json.dumps({"schema": SCHEMA, "folder": str(into), "files": rows}, indent=1))
    else:
        _tell(done, into, len(skills))
    return 1 if any(d.what == "kept" for d in done) else 0


def _tell(done: list[Done], into: Path, skills: int) -> None:
    counts = Counter(d.what for d in done)
    for one in done:
        if one.what not in ("added", "unchanged"):
            print(f"{one.path}  {_SAYS[one.what]}")
    summary = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"{skills} skills in {into}: {summary} files")


@app.command(epilog="Example: trackwalker skills check .claude/skills")
def check(
    folder: Annotated[Path | None, typer.Argument(help="Folder of skills, or one skill; without it, ours.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check the format, the links, the hand-overs, and that every command a skill names is accepted.

    Exit codes: 0 nothing is wrong, 1 something is, 2 there are no skills.
    """
    skills = load_skills(folder)
    wrong = check_skills(skills)
    for skill in skills:
        named = [f"{page}: {p}" for page, text in skill.pages for p in problems(text)]
        if named:
            wrong[skill.name] = [*wrong.get(skill.name, []), *named]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "checked": len(skills), "problems": wrong}, indent=1))
        return 1 if wrong else 0
    for name, lines in sorted(wrong.items()):
        for line in lines:
            print(f"{name}: {line}")
    print(f"{len(skills)} skills checked, {sum(map(len, wrong.values())) or 'no'} problems")
    return 1 if wrong else 0
