"""Where a run was asked for: the machine that people can reach, for tunnels to machines that they cannot."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping

from trackwalker.job.run import Origin


def origin(env: Mapping[str, str] = os.environ) -> Origin:
    """This machine and this user; over SSH also the address that the user's own machine reached us by."""
    # SSH_CONNECTION: client address, client port, server address, server port. Nobody on the internet is asked.
    words = env.get("SSH_CONNECTION", "").split()
    address, port = (words[2], int(words[3])) if len(words) == 4 and words[3].isdecimal() else (None, 22)
    machine = env.get("TRACKWALKER_LOGIN") or socket.gethostname()
    return Origin(machine=machine, user=_user(env), address=address, port=port)


def _user(env: Mapping[str, str]) -> str:
    try:
        return env.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "root" if os.getuid() == 0 else str(os.getuid())
