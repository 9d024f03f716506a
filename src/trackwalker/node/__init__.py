"""The agent every scheduler starts on every node: standard library only, Python 3.9 and later, one zipapp.

For other rooms: `__main__` (the agent itself); `stages.order` (what a node is asked to do); `stages.incidents` (what
nodes report of themselves); `runtimes` (container runtimes); `runtimes.container` (what one is asked for);
`runtimes.containers` (a job's containers on one node); `runtimes.image` (names of images, and fetching one);
`checks.runner` (which checks count); `checks.result` (what a check said); `agent.spec` (what the agent is told);
`agent.workers` (ranks that somebody else started); `agent.rank_progress` (a rank's steps, as it reports them);
`agent.services` (what runs beside training); `agent.outcome` (how a run ended); `agent.output` (lines as the log has
them); `collectors.identity` (which rank uses which GPU); `collectors.training` (steps as metrics); `exporter.backlog`
(metrics with a time of their own); `evidence.capsule` (where evidence lies); `evidence.coredump` (core files).
"""
