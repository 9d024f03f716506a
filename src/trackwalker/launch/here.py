"""A run that its command stays with: on this machine, as one node of several, or on the nodes of an allocation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trackwalker.launch.code.provenance import code_of
from trackwalker.launch.plan import plan_local, refuse_wrong
from trackwalker.launch.request.models import load_model
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.request.words import Watching, parse_model_spec, parse_passthrough
from trackwalker.launch.schedulers.allocation import RunInAllocation, allocation_of, refuse_parts
from trackwalker.launch.schedulers.by_hand import RunByHand, place_by_hand
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.launch.submission import How, plan_submission

Started = LocalRun | RunByHand | RunInAllocation


@dataclass(frozen=True)
class Here:
    """What is asked for, as it was typed."""

    model: str
    words: list[str]  # behind `--`
    procs: int
    image: str | None
    registry: str
    runtime: str | None
    privileged: bool
    in_container: bool
    workspace: Path

    @property
    def native(self) -> bool:
        """Whether the ranks run without a container of ours."""
        return self.in_container or self.runtime == "native" or not (self.image or self.runtime)

    def refuse_wrong(self) -> None:
        """Raise what the trainer would say only once it runs, as far as that is known here."""
        if self.native and not self.in_container:
            refuse_wrong(load_model(parse_model_spec(self.model).model), parse_passthrough(self.words))


def start_here(run: Here, watching: Watching, say: Callable[[str], None]) -> Started:
    """Start it where it belongs: inside a Slurm allocation that is the allocation's nodes."""
    code = code_of(Path.cwd(), run.workspace, None if run.native else "")
    given = None if run.in_container else allocation_of(os.environ)
    if given is None and run.native and not run.in_container:
        spec, passthrough = parse_model_spec(run.model), parse_passthrough(run.words)
        plan = plan_local(
            spec, run.procs, passthrough, run.workspace, watching.observe, sys.argv[1:], watching.ray, code
        )
        return LocalRun.start(plan)
    how = How(
        scheduler="slurm" if given else "local",
        argv=sys.argv[1:],
        procs=run.procs,
        observe=watching.observe,
        ray=watching.ray,
        runtime="native" if run.native else run.runtime or "auto",
        privileged=run.privileged,
        listen=os.environ.get("TRACKWALKER_LISTEN", ""),
        provenance=code,
    )
    place = place_by_hand(os.environ if run.in_container else {})
    if given is not None:
        refuse_parts(os.environ)
        say(f"on the nodes of your Slurm {given.words()}")
    asked = Asked(
        run.model,
        run.words if given else [*place.coordinator, *run.words],
        given.nodes if given else place.nodes,
        image=None if run.native else run.image,
        registry=run.registry,
        workspace=run.workspace,
    )
    submission = plan_submission(asked, how)
    return RunInAllocation(submission, given) if given else RunByHand(submission, place)
