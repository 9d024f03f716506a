"""Many jobs at a time: one row for each, kept in Parquet beside the user's caches, and questions about all of them.

The job directories remain the truth: whatever is kept here can be thrown away and is made again from them.

For other rooms: `source` (where jobs come from); `scan` (which of them changed); `rows` (a row for each job); `index`
(the rows of a workspace, kept); `store` (the rows of all workspaces); `questions` (what is asked of them); `examine`
(diagnosis in the background); `incidents` (what somebody has to look at, also as text); `marks` (what people decided);
`signs` (the watcher's word).
"""
