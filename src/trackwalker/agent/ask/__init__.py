"""`trackwalker ask`: a question in plain words, answered from the evidence."""
