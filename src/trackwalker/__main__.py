"""`python -m trackwalker` is the `trackwalker` command."""

from __future__ import annotations

from trackwalker.cli.app import main

main()
