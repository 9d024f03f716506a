"""`trackwalker mcp`: the tools of an AI agent over one workspace, and the approvals a person gives it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.policy import Approval, Approvals, Policy, state_folder, this_person
from trackwalker.cli.common import options
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson
from trackwalker.errors import UsageError
from trackwalker.report.text import one_line

SCHEMA = "trackwalker.approvals/1"

app = typer.Typer(
    invoke_without_command=True,
    help="Serve a workspace to an AI agent (MCP): reading only, unless a policy allows actions.",
    epilog="Example: trackwalker mcp --workspace outputs; trackwalker mcp approve",
)


@app.callback()
def _serve(
    context: typer.Context,
    workspace: options.Workspace = DEFAULT_WORKSPACE,
    http: Annotated[
        int | None, typer.Option("--http", metavar="PORT", min=0, max=65535, help="On 127.0.0.1; 0: any free port.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="Token of HTTP clients; else TRACKWALKER_MCP_TOKEN.")
    ] = None,
    actions: Annotated[bool, typer.Option("--actions", help="Offer actions too; each needs an approval.")] = False,
    policy: Annotated[Path | None, typer.Option("--policy", help="Who may ask for which action.")] = None,
    audit: Annotated[Path | None, typer.Option("--audit", help="Log of every call; default: the user's own.")] = None,
) -> None:
    if context.invoked_subcommand is not None:
        return
    if actions != (policy is not None):
        raise UsageError("actions need both: --actions and --policy FILE (docs/how-to/agents.md shows one)")
    if token_file is not None and http is None:
        raise UsageError("--token-file is for --http: over stdio nobody else can connect")
    # Only here: saying yes to an approval shall not wait for all that a server needs.
    from trackwalker.agent.actions import Office
    from trackwalker.agent.server import read_token, serve_http, serve_stdio
    from trackwalker.agent.toolbox import Toolbox
    from trackwalker.agent.workspace import Workspace

    token = read_token(token_file) if http is not None else ""
    ws = Workspace(workspace)
    caller = Caller("mcp", "stdio" if http is None else "http")
    office = Office(ws, Policy.load(policy), approvals(), caller.who) if policy is not None else None
    toolbox = Toolbox(ws, Audit(audit or state_folder() / "audit.jsonl"), caller, office)
    if http is None:
        serve_stdio(toolbox)
    else:
        serve_http(toolbox, http, token)


@app.command("approve", epilog="Example: trackwalker mcp approve K7QF-2M9X")
def approve(
    approval: Annotated[str | None, typer.Argument(help="As the agent names it; without it, what waits.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what an agent wants to do, and let it do that once; without an approval, list what waits."""
    if approval is None:
        waiting = approvals().pending()
        if as_json:
            print(json.dumps({"schema": SCHEMA, "waiting": [_row(a) for a in waiting]}, indent=1))
        elif not waiting:
            print("nothing waits for an approval")
        else:
            print("\n".join(_line(each) for each in waiting))
        return
    wish = approvals().look(approval)
    if not sys.stdin.isatty():
        raise UsageError("an approval is given by a person at a terminal: run this in one")
    print(_line(wish))
    for name, value in wish.args.items():
        print(f"  {one_line(name)}: {one_line(value if isinstance(value, str) else json.dumps(value))}")
    if input("Type yes to let it be done once: ").strip().lower() != "yes":
        print("not approved")
        return
    log = Audit(state_folder() / "audit.jsonl")
    log.note(Caller(this_person(), "terminal"), "approve", {"approval": wish.nonce, "action": wish.action}, "begin")
    approvals().confirm(wish.nonce, this_person())
    log.close()
    print(f"approved: the agent may do it within {_left(wish)} s, once, with these arguments only")


def approvals() -> Approvals:
    """The approvals of this user."""
    return Approvals(state_folder() / "approvals")


def _row(wish: Approval) -> dict[str, object]:
    return {"approval": wish.nonce, "action": wish.action, "args": wish.args, "asked_by": wish.asked_by}


def _line(wish: Approval) -> str:
    return f"{wish.nonce}  {wish.asked_by} asks for: {wish.action}  (expires in {_left(wish)} s)"


def _left(wish: Approval) -> int:
    return max(0, int(wish.expires - time.time()))
