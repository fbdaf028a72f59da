"""``llmk verify``: what a person with a chip runs to say whether llmk works on it, and how fast.

Its JSON is a line of the table in the docs.
"""
