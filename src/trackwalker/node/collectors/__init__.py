"""One file per source of metrics; upstream's names (hw_*, tb_*) and meanings are kept."""
