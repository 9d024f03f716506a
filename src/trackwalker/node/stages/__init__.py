"""A job on one of its nodes, stage by stage: what is asked, checked, started, and told to the other nodes."""
