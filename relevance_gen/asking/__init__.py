"""Answer questions from texts: search them, and generate the answer from the results."""
