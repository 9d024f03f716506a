"""An incident as Markdown, for a chat or a ticket: what, where, since when, what it costs, what to do."""

from __future__ import annotations

import re
import shlex

from trackwalker.fleet.incidents import Incident
from trackwalker.report.text import one_line
from trackwalker.report.words import amount, utc

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#~@"})
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def markdown(incident: Incident, link: str, price: float | None) -> str:
    """A dozen lines; names and sentences of jobs are text in it and nothing else."""
    row, mark = incident.row, incident.mark
    lines = [f"**{_plain(incident.title)}**: job {_plain(row.id)} ({_plain(row.model)}), {_plain(row.status)}", ""]
    lines += [f"{_plain(incident.says)}", ""] if incident.says else []
    if row.hosts:
        lines.append(f"- hosts: {_plain(', '.join(row.hosts))}")
    first, last = incident.first, incident.last
    seen = f"since {utc(first)} UTC" if first else "since when is not known"
    lines.append(f"- {seen}, {'still going on' if incident.live else f'last seen {utc(last)} UTC' if last else 'over'}")
    lost = "not known" if incident.lost is None else f"{amount(incident.lost)} GPU-hours"
    money = incident.money(price)
    lines.append(f"- lost: {lost}" + (f" ({amount(money)})" if money is not None else ""))
    if incident.burning:
        lines.append(f"- burning now: {amount(incident.burning)} GPUs")
    if incident.alike:
        shown = ", ".join(f"{_plain(each.job)} ({_plain(each.host)})" for each in incident.alike[:5])
        lines.append(f"- the same cause on the same host: {shown}")
    lines.append(f"- {mark.state}" + (f", {_plain(mark.owner)}" if mark.owner else ""))
    if mark.note:
        lines.append(f"- note: {_plain(mark.note)}")
    return "\n".join([*lines, "", _link(link), ""])


def drain_commands(host: str) -> list[tuple[str, str]]:
    """How a host is taken out, by scheduler; a name that no shell command can hold gives none."""
    if not _HOST.fullmatch(host):
        return []
    name = shlex.quote(host)
    return [
        ("Slurm", f"scontrol update nodename={name} state=drain reason=trackwalker"),
        ("Kubernetes", f"kubectl cordon {name}"),
        ("the next submission", f"trackwalker submit MODEL --exclude={name}"),
    ]


def _link(link: str) -> str:
    return "<" + re.sub(r"[<>\s]", "", link) + ">"


def _plain(text: str) -> str:
    return one_line(text).translate(_SPECIAL)
