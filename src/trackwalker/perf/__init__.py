"""Where the step goes: traces, programs, throughput, and what to fix first.

For other rooms: `analysis.report` (one job's performance); `analysis.result` (what that holds); `analysis.parts`
(forward, backward and the rest of a step); `analysis.classes` (kinds of kernels); `analysis.step_lanes` (a step, stream
by stream); `analysis.diff` (two jobs); `analysis.diff_result` (what that holds); `analysis.drill` (one operation);
`analysis.drill_result` (what that holds); `analysis.capture` (a trace of a running job); `ranks.perfetto` (traces of
all ranks as one); `formats.find` (where traces lie); `throughput.goodput_cost` (what lost time costs).
"""
