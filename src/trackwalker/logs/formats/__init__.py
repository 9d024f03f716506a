"""Forms of evidence other than plain log lines."""
