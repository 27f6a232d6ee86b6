"""Answer questions from texts: search them, and let a model write the answer from what was found."""
