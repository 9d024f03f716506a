"""Questions by name, for cause files."""
