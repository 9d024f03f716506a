"""Words that a lost peer makes: whoever prints them waits for somebody, lost somebody, or was told to end.

They name nobody's fault. One rank may say such a thing of itself, so they only stand behind what is said otherwise.
"""
# ruff: noqa: E501

from __future__ import annotations

import re

from trackwalker.logs.failures.signatures import Trait

VICTIMS: tuple[Trait, ...] = ("victim", "hearsay", "heartbeat")
_WHO = r"(?:peers?|ranks?|workers?|process(?:es)?|nodes?|members?|neighbou?rs?|leader|coordinator|master|store|others?|tasks?|partners?|remote|replicas?|participants?|group|ring|cohort|gang)"
_GONE = r"(?:gone|lost|closed|dead|left|unreachable|vanish\w*|disconnect\w*|missing|stopped|exited|died|reset|dropped|went|silent|unresponsive|not (?:respond|answer)\w*|fail(?:ed|ure)|unhealthy|hung up|terminated|crashed)"
_COLLECTIVE = r"(?:collectives?|all.?reduce|all.?gather|reduce.?scatter|broadcast|all.?to.?all|barriers?|send/?recv|process.?group|communicator|ring|rendezvous)"
_REACTS = re.compile(
    rf"""(?ix)
    \b{_WHO}\b[^.;]{{0,60}}\b{_GONE}\b
    | \b(?:lost|losing|no|without)\s(?:contact|connection|touch|word|answer|reply|response|heart.?beats?)\b[^.;]{{0,40}}\b{_WHO}\b
    | \bconnection\s(?:was\s)?(?:closed|reset|refused|lost|aborted|dropped)\b | \bbroken.?pipe\b | \bconnection(?:reset|aborted)error\b
    | \bheart.?beats?\b[^.;]{{0,40}}\b(?:miss\w*|lost|late|stopp\w*|timed.out|expired|overdue|absent)\b | \bmissed\s(?:\d+\s)?heart.?beats?\b
    | \b{_COLLECTIVE}\b[^.;]{{0,80}}\b(?:timed?.?out|stuck|hung|abort\w*|fail\w*|incomplete|wait\w*|cancel\w*|broken|interrupted|not\scomplete\w*|arrived|torn.down|destroyed|returned\serror)\b
    | \b(?:timed?.?out|timeout|abort\w*|failed|giving\sup|gave\sup|stuck|hung)\b[^.;]{{0,40}}\b{_COLLECTIVE}\b
    | \b\d+\s?(?:/|of)\s?\d+\s(?:\w+\s)?(?:arrived|present|joined|reported)\b
    | \bfail\w*\sto\s(?:connect|register|join)\b[^.;]{{0,40}}\b(?:{_WHO}|coordination\sservice|rendezvous)\b
    | \bconnect(?:ion|ing)?(?:\(\))?\s(?:attempt\s)?timed\s?out\b
    | \bwait(?:ed|ing)\s[^.;]{{0,40}}\bfor\s(?:\S+\s){{0,3}}{_WHO}\b
    | \bwatchdog\b[^.;]{{0,40}}\b(?:caught|timeout|timed.out|detected|stuck)\b | /job:\w+/replica:\d+/task: | \bleaving\sthe\s(?:group|ring|world|mesh|job) | \b(?:another|other|some|remote|one\sof\sthe)\s(?:\w+\s)?{_WHO}\b
    | \b(?:group|ring|mesh|world|gang|cohort)\b[^.;]{{0,30}}\b(?:broken|broke|torn|dissolved|gone)\b | \b(?:exiting|leaving|stopping|ending|quitting|going|aborting)\s(?:too|as\swell|likewise)\b
    | \b(?:got|received|read)\s(?:0|no|zero)\s(?:bytes|data|words?|reply|answer)\sfrom\b | \bhung\sup\b
    | \bSIG(?:TERM|HUP)(?:Exception)?\b | \bsignal:?\s(?:1|15|Terminated)\b | \b(?:asked|ordered|request(?:ed)?)\sto\s(?:stop|end|exit|terminate|shut.down)\b | \btermination\ssignal\b
    | \bshutting\sdown\s(?:because|after|on\srequest|since|due) | \bMPI_(?:All|Barrier|Bcast|Gather|Recv|Reduce|Wait|Send)\w*
    """
)
# The end of everything, told by whoever tells it: that it failed, not what.
_WRAPS_UP = re.compile(
    r"(?i)^[\w/-]+(?:\.[\w/-]+)+ FAILED\W*$|^\W*(?:(?:ERR|ERROR|FATAL|CRITICAL)\b\W*)?(?:[\w.]+:(?:\d+\W{1,4})? ?)?(?:the )?(?:training|run|job|trainer|worker|process|main|script|trial|experiment|task|launch|step|program|"
    r"exiting|aborting|stopping|cleaning up|shutting down|terminating)\b[^:;]{0,40}(?:\b(?:failed|aborted|stopped|exited|terminated|interrupted|cancelled|ended|crashed|"
    r"exiting|aborting|the run|now|everything|all workers|with (?:code|status) \d+)\b)[\s.!]*(?:with (?:exit )?(?:code|status) \d+)?[\s.!]*$"
    r"|^\W*(?:[\w.]+(?:Error|Exception): )(?:aborted|failed|stopped|interrupted|cancelled|terminated|killed|(?:unknown |internal )?error)\W*$"
    r"|\b(?:unhandled|uncaught|unexpected) (?:error|exception)\b[^:]{0,60}$|\bWaiting up to \d+ seconds for all\b"
    # What raises another process's error again.
    r"|^\W*(?:[\w.]+\.)?(?:ProcessRaised|ProcessExited|ChildFailed|CalledProcess|ExecuteUserScript|WorkerGroup|TrainingFailed|RayTask|RayActor|ActorDied|HorovodInternal)(?:Error|Exception)\b"
    # What a launcher runs, told by it as an error of its own.
    r"|^\W*(?:(?:error|fatal)\W+)?failed to (?:run|execute|launch) (?:\S*/)?(?:torchrun|python|deepspeed|accelerate|mpirun|srun|ray|bash|sh)\b|^Training errored after \d+ iterations"
    r"|\bError executing job with overrides\b|\bjob triggered an exception\b|^-- Process \d+ terminated with the following error"
    r"|\bdetected that one or more processes exited|\bone or more workers failed|^\W*ErrorMessage\b|^\W*ExitCode\b"
)


_ANNOUNCES = re.compile(
    r"(?i):$|^\W*(?:(?:fatal|critical|error|abort(?:ed|ing)?|panic|halt(?:ed)?|stop(?:ped)?|failure|failed|run|job|training|the)\W+){1,3}(?:(?:error|stopped|failed|aborted|halted|over)\W*)?$"
    r"|^\W*[\w.-]+ (?:cannot|can not|could not) (?:continue|go on|proceed)\W*$"
)
# Launchers on how processes ended: their own words, and the blocks of torchrun's summary.
_LAUNCHERS_END = re.compile(
    r"^\W*(?:srun|slurmstepd|sbatch|mpirun|mpiexec|prterun|orterun|kubelet|pdsh@\S+|systemd)\b[:\[ ]|torch/distributed/elastic/|\[launch\.py:\d+"
    r"|^\s*(?:time|host|rank|exitcode|error_file|traceback|Process name|Exit code|class_name|actor_id|pid|name|namespace|ip)\s*: |^Trial \S+ errored|\btune_controller\.py|<NO_OTHER_FAILURES>|^Root Cause|^[\w/-]+(?:\.[\w/-]+)+ FAILED\W*$|ChildFailedError"
    # How a process ended, in its own or its library's last words.
    r"|^\W*(?:Fatal Python error: )?(?:Aborted|Killed|Terminated|Segmentation fault|Bus error|Illegal instruction)\W*(?:\(core dumped\))?\W*$|Process received signal|^\W*(?:Signal|Signal code|Failing at address): "
    r"|: line \d+: +\d+ (?:Aborted|Killed|Terminated|Segmentation fault|Bus error|Hangup)\b|^\W*Primary job |^a non-zero exit code|noticed that process rank|exited on signal|Sending process \d+ closing"
)


def launchers_end(text: str) -> bool:
    """Whether a line is a launcher's word on how a process ended."""
    return _LAUNCHERS_END.search(text, 0, 300) is not None


def reacts(text: str) -> bool:
    """Whether a line is in the words of one who lost or waits for another, or was told to end."""
    return _REACTS.search(text, 0, 400) is not None or wraps_up(text) or launchers_end(text)


def announces(text: str) -> bool:
    """Whether a line only says that something is to be told: the next one tells it."""
    return _ANNOUNCES.search(text, 0, 200) is not None


def wraps_up(text: str) -> bool:
    """Whether a line tells no more than that all is over."""
    return _WRAPS_UP.search(text, 0, 200) is not None
