"""The local web app over a workspace: pages and small JSON answers, read-only."""
