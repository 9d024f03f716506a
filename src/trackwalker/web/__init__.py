"""The local web app over a workspace: pages and small JSON answers, read-only.

For other rooms: `app` (the server); `settings` (what it is told); `pages.render` (its templates).
"""
