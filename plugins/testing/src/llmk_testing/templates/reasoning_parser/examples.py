"""Answers in the dialect, that the conformance kit tries the parser on: add what real models write."""

THOUGHTS = (
    "[[think]]A city in the north. [No brackets] needed.[[/think]]Oslo.",
    "First: [[think]]one[[/think]] and [[think]]two",
    "[[think]][[/think]]Nothing to think about, [[thin",
)
