"""From a request to an engine's job, and from its text to rendered events."""
