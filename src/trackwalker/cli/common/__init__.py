"""What several commands share: options, output, progress, settings."""
