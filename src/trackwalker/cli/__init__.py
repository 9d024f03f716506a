"""One small file per command: parse, call a room, render."""
