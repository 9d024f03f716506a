"""Skills: written methods for agents. Where ours are; the rules of the format (agentskills.io) and of this house."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from trackwalker.errors import UsageError
from trackwalker.job.yaml_files import read_yaml

PAGE = "SKILL.md"
KEYS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
MOST_NAME = 64
MOST_DESCRIPTION = 1024
MOST_COMPATIBILITY = 500
MOST_LINES = 200  # the format allows 500: nobody reads that at 3 a.m.
MOST_TOKENS = 5000
CHARACTERS_PER_TOKEN = 3.5  # English prose has four and more: this counts too many tokens rather than too few
HAND_OFFS = "## Hand over"

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
# Places that differ from machine to machine; /proc, /dev, /etc and /usr are found everywhere.
_PLACES = r"(?:/(?:home|root|tmp|work|mnt|opt|var|data|scratch|Users)|[A-Z]:\\\w+)(?=[/\\`'\")\s])"
_ABSOLUTE = re.compile(rf"(?<![\w./~$}}>-]){_PLACES}[^\s`'\")]*")
_SKILL_NAMED = re.compile(r"\*\*([a-z0-9-]+)\*\*")


@dataclass(frozen=True)
class Skill:
    """One skill as it lies on disk."""

    folder: Path
    text: str

    @property
    def name(self) -> str:
        """The folder's name, which the front matter has to repeat."""
        return self.folder.name

    @cached_property
    def parts(self) -> tuple[str, str] | None:
        """Front matter and body; None where the page does not begin with front matter."""
        pieces = self.text.split("---\n", 2)
        return (pieces[1], pieces[2]) if len(pieces) == 3 and not pieces[0] else None

    @cached_property
    def front(self) -> dict[str, Any] | None:
        """The front matter; None where it is no mapping."""
        try:
            front = read_yaml(self.parts[0]) if self.parts else None
        except yaml.YAMLError:
            return None
        return front if isinstance(front, dict) else None

    @property
    def body(self) -> str:
        """What an agent reads when it has chosen the skill."""
        return self.parts[1] if self.parts else self.text

    @property
    def description(self) -> str:
        """What an agent chooses the skill by."""
        return str((self.front or {}).get("description") or "")

    @property
    def files(self) -> list[Path]:
        """Everything that belongs to it, by name."""
        return sorted(p for p in self.folder.rglob("*") if p.is_file())

    @property
    def pages(self) -> list[tuple[str, str]]:
        """Every Markdown page with its path inside the skill."""
        return [
            (str(p.relative_to(self.folder)), p.read_text(encoding="utf-8")) for p in self.files if p.suffix == ".md"
        ]


def shipped() -> Path:
    """The folder of our own skills: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "skills", package.parent.parent / "skills"):
        if (folder / "job-log-triage" / PAGE).is_file():
            return folder if (folder / "job-log-triage" / "references").is_dir() else _complete(folder)
    raise UsageError("this installation holds no skills: install the trackwalker wheel, or work in a checkout")


@cache
def _complete(folder: Path) -> Path:
    """The skills of a wheel with the pages that repeat playbooks and signatures, which it does not carry."""
    from trackwalker.agent.skills.skill_pages import pages  # reads all of them

    whole = Path(tempfile.mkdtemp(prefix="trackwalker-skills-"))
    atexit.register(shutil.rmtree, whole, ignore_errors=True)
    shutil.copytree(folder, whole, dirs_exist_ok=True)
    for name, text in pages().items():
        (whole / name).parent.mkdir(exist_ok=True)
        (whole / name).write_text(text, encoding="utf-8")
    return whole


def load_skills(folder: Path | None = None) -> list[Skill]:
    """The skills of a folder by name; without one, ours."""
    home = folder or shipped()
    if (home / PAGE).is_file():
        return [_load(home)]
    found = sorted(p.parent for p in home.glob(f"*/{PAGE}"))
    if not found:
        raise UsageError(f"no skills in {home}: each is a folder with a {PAGE}")
    return [_load(p) for p in found]


def _load(folder: Path) -> Skill:
    try:
        return Skill(folder.resolve(), (folder / PAGE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read {folder / PAGE}: {e}") from e


def tokens(text: str) -> int:
    """An estimate that is rather too high than too low."""
    return round(len(text) / CHARACTERS_PER_TOKEN)


def check(skills: Iterable[Skill]) -> dict[str, list[str]]:
    """What is wrong with each skill, by name; a skill without fault is not in it."""
    skills = list(skills)
    known = frozenset(s.name for s in skills)
    found = {s.name: [p for rule in RULES for p in rule(s, known)] for s in skills}
    return {name: problems for name, problems in found.items() if problems}


Rule = Callable[[Skill, frozenset[str]], Iterator[str]]


def has_front_matter(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """The page begins with front matter that is a YAML mapping."""
    if skill.front is None:
        yield f"{PAGE} must begin with a YAML mapping between two '---' lines"


def keys_are_known(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """Only keys of the format stand in it."""
    if odd := sorted(str(k) for k in set(skill.front or {}) - KEYS):
        yield f"front matter: unknown {', '.join(odd)}; the format has {', '.join(sorted(KEYS))}"


def name_is_the_folders(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """The name is the folder's: small letters, digits and single hyphens, at most 64."""
    if skill.front is None:
        return
    name = skill.front.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MOST_NAME:
        yield f"name {name!r} must be small letters, digits and single hyphens, at most {MOST_NAME}"
    elif name != skill.name:
        yield f"name '{name}' is not that of its folder, '{skill.name}'"


def description_says_what_and_when(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """The description says what the skill does and when to use it, in at most 1024 characters."""
    if skill.front is None:
        return
    text = skill.front.get("description")
    if not isinstance(text, str) or not text.strip():
        yield "description is missing"
    elif len(text) > MOST_DESCRIPTION:
        yield f"description has {len(text)} characters, at most {MOST_DESCRIPTION} are read"
    elif "use when" not in text.lower():
        yield "description must say when to use the skill ('Use when …')"


def optional_fields_are_of_their_kind(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """Licence and compatibility are short texts, metadata maps texts to texts."""
    front = skill.front or {}
    for key in ("license", "compatibility", "allowed-tools"):
        if key in front and (not isinstance(front[key], str) or not front[key].strip()):
            yield f"{key} must be a text"
    if len(str(front.get("compatibility", ""))) > MOST_COMPATIBILITY:
        yield f"compatibility has more than {MOST_COMPATIBILITY} characters"
    metadata = front.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for pair in metadata.items() for x in pair):
        yield "metadata must map texts to texts"


def body_is_short(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """The body has under 200 lines and 5,000 tokens; so has each reference, which is loaded beside it."""
    if not skill.body.strip():
        yield f"{PAGE} has no body"
    for page, text in skill.pages:
        body = skill.body if page == PAGE else text
        if (lines := body.count("\n") + 1) >= MOST_LINES:
            yield f"{page} has {lines} lines, under {MOST_LINES} are allowed: put details into references/"
        if (count := tokens(body)) >= MOST_TOKENS:
            yield f"{page} has about {count} tokens, under {MOST_TOKENS} are allowed: put details into references/"


def links_lead_somewhere(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """Links lead to files of the skill itself, as it is installed without the rest of the project."""
    for page, text in skill.pages:
        for target in _LINK.findall(text):
            if target.startswith(("https://", "#")):
                continue
            path = (skill.folder / page).parent / target.partition("#")[0]
            if skill.folder not in path.resolve().parents:
                yield f"{page}: the link '{target}' leaves the skill"
            elif not path.is_file():
                yield f"{page}: the link '{target}' leads nowhere"


def references_are_one_level_deep(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """Files lie beside the page or one folder below it, and each reference is linked from a page."""
    named = {t.partition("#")[0].rpartition("/")[2] for _, text in skill.pages for t in _LINK.findall(text)}
    for path in skill.files:
        inside = path.relative_to(skill.folder)
        if len(inside.parts) > 2:
            yield f"{inside} lies deeper than one folder"
        elif inside.parts[0] == "references" and inside.name not in named:
            yield f"{inside} is linked from nowhere"


def paths_are_nobodys(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """No absolute path: a skill is read on machines of other people."""
    for page, text in skill.pages:
        for match in _ABSOLUTE.finditer(text):
            yield f"{page}: absolute path '{match[0]}'"


def hand_offs_exist(skill: Skill, known: frozenset[str]) -> Iterator[str]:
    """The section 'Hand over' names skills in bold, all of which exist; what a skill never ends in is no method."""
    _, found, rest = skill.body.partition(f"\n{HAND_OFFS}\n")
    section = rest.partition("\n## ")[0]
    names = _SKILL_NAMED.findall(section)
    if not found or not names:
        yield f"a section '{HAND_OFFS}' must name the skills (in bold) that go on from here"
    for name in sorted(set(names) - known):
        yield f"hands over to '{name}', which does not exist"
    if skill.name in names:
        yield "hands over to itself"


RULES: tuple[Rule, ...] = (
    has_front_matter,
    keys_are_known,
    name_is_the_folders,
    description_says_what_and_when,
    optional_fields_are_of_their_kind,
    body_is_short,
    links_lead_somewhere,
    references_are_one_level_deep,
    paths_are_nobodys,
    hand_offs_exist,
)
