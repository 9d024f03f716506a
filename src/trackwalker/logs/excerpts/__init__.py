"""What a short excerpt shows besides failures: tables and repeated lines that tell of a slow or a stopped run."""
