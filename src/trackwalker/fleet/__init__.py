"""Many jobs at a time: one row for each, kept in Parquet beside the user's caches, and questions about all of them.

The job directories remain the truth: whatever is kept here can be thrown away and is made again from them.
"""
