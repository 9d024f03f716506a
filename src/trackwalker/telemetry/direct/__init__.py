"""PromQL answered from a database's blocks themselves, by arrays."""
