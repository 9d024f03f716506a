"""From evidence to verdict: symptoms, playbooks, causes.

For other rooms: `engine` (one job's verdict); `verdict` (what a verdict holds); `saved` (the one saved with a job);
`triage` (the log alone); `views.story` (what a report draws); `views.asked` (what was asked and answered);
`compare.compare` (two jobs); `causes.playbook` (the causes).
"""
