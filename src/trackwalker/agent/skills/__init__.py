"""Written methods for AI agents: found, made, installed, checked."""
