"""Playbooks: one Markdown file per cause."""
