"""From evidence to verdict: symptoms, playbooks, causes."""
