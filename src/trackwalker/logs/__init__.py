"""Log reading: what a job wrote, as facts with line numbers.

For other rooms: `scanning.index` (a log, read once); `scanning.scan` (only its lines of a kind); `scanning.steps` (its
steps, also as they come); `scanning.stamps` (when lines were written); `scanning.lines` (a line, taken apart);
`scanning.chunk` (whose line it is); `scanning.window` (any lines of a large log); `facts` (what it says of the run);
`failures.findings` (what failed); `failures.signatures` (the known failures); `failures.roles` (cause or consequence);
`failures.victim_lines` (lines of those who only suffered); `failures.lastwords` (words of who lost somebody);
`failures.step_numbers` (a loss that jumps);
`attempts` (where the run began anew); `formats.dialect` (lines of trainers); `formats.nodelist` (n[1-8] as names);
`formats.workers` (logs beside it);
`formats.stacks` (stack dumps); `formats.flight_recorder` (NCCL's, and its RAS); `formats.tfevents`
(event files); `formats.wandb` (W&B files).
"""
