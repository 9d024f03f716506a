"""The hallway: the job directory is the API, and this is how everyone finds and reads one."""
