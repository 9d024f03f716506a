"""Where the step goes: traces, programs, throughput, and what to fix first.

For other rooms: `analysis.report` (one job's performance); `analysis.result` (what that holds); `analysis.diff` (two
jobs); `throughput.goodput_cost` (what lost time costs).
"""
