"""A conversation in a terminal: what is typed, who answers, and what is shown."""
