"""From evidence to verdict: symptoms, playbooks, causes.

For other rooms: `engine` (one job's verdict); `verdict` (what a verdict holds); `saved` (the one saved with a job);
`triage` (the log alone); `case` (the evidence of one job); `elsewhere` (metrics from another store); `views.story`
(what a report draws, its steps among it); `views.asked` (what was asked and answered); `views.tails` (the
last line of every rank); `compare.compare` (two jobs); `compare.config_diff` (their settings); `compare.deltas` (their
quantities); `compare.reference` (an earlier speed); `deviations.changed` (what changed between two times);
`deviations.log_changes` (in the log); `causes.playbook` (the causes); `causes.states` (what they are called);
`causes.examine` (one cause tested); `causes.evidence` (what speaks against one); `causes.confidence` (how sure).
"""
