"""Commands that answer questions about a job."""
