"""What an AI agent may see and do: read-only tools over one workspace, and actions behind a policy and an approval.

For other rooms: `workspace` (the jobs of one workspace, each read once); `toolbox` (the tools by name); `policy` (what
is allowed); `server` (all of it over MCP); `ask.ask` (a question and its answer); `skills.skills` (the methods that
agents follow).
"""
