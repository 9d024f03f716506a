"""Where the step goes: traces, programs, throughput, and what to fix first."""
