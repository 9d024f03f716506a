"""One small file per command: parse, call a room, render.

For other rooms: `app` (the command itself).
"""
