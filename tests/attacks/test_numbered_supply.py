"""Attack 26: a package that is not the one that was looked at. By the tree's own files."""

from __future__ import annotations

import re

from surface import ATTACKED, lands


def test_a26_setup_installs_only_files_whose_hashes_are_pinned() -> None:
    installs = re.findall(r"pip install(?:[^\\\n]|\\\n)*", (ATTACKED / "scripts" / "setup").read_text())
    assert installs
    open_ones = [line for line in installs if "--require-hashes" not in line and "--no-deps" not in line]
    if open_ones:
        lands("whatever the registry delivers is installed: no hash is asked for")
    assert "--hash=sha256:" in (ATTACKED / "requirements.lock").read_text()
