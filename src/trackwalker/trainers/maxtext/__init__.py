"""MaxText as it is, with a hook that reports its progress."""
