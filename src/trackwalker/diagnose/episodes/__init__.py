"""When something was wrong, and how much it cost."""
