"""The channels that carry messages to people: one small class each."""
