"""Runs that ended: whether the owner's policy starts them again."""
