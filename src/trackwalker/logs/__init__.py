"""Log reading: what a job wrote, as facts with line numbers.

For other rooms: `scanning.index` (a log, read once); `facts` (what it says of the run); `failures.findings` (what
failed); `failures.signatures` (the known failures); `attempts` (where the run began anew); `formats.nodelist` (n[1-8]
as names).
"""
