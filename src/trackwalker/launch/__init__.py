"""From what the user asked to what runs: model, config, plan, start."""
