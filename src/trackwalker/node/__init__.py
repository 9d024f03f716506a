"""The agent every scheduler starts on every node: standard library only, Python 3.9 and later, one zipapp."""
