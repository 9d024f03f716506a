"""What an AI agent may see and do: read-only tools over one workspace, and actions behind a policy and an approval.

For other rooms: `workspace` (the jobs of one workspace, each read once); `toolbox` (the tools by name); `policy` (what
is allowed); `server` (all of it over MCP); `ask.ask` (a question, its budget and its answer); `ask.questions` (how a
question may be put); `answers` (what tools answer, as text of bounded length); `verdicts` (a verdict as an answer);
`log_lines` (lines of a log, found and scrubbed); `job_files` (small files of a job); `actions` (what changes something:
cancel, exclude, ask for stacks); `audit` (who did it); `standing_now` (how a job stands, by its log where the scheduler
cannot say); `skills.skills` (the methods that agents follow); `skills.skill_install` (putting them where an agent finds
them).
"""
