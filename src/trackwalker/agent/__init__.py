"""What an AI agent may see and do: read-only tools over one workspace, and actions behind a policy and an approval."""
