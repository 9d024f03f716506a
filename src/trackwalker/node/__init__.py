"""The agent every scheduler starts on every node: standard library only, Python 3.9 and later, one zipapp.

For other rooms: `stages.order` (what a node is asked to do); `stages.incidents` (what nodes report of themselves);
`runtimes` (containers); `agent.spec` (what the agent is told).
"""
