"""``llmk bench``: what users of a server feel under load, and what a model takes on this machine."""
