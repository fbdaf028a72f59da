"""Examples for the conformance kit: answers in the dialect. Add what real models write."""

THOUGHTS = (
    "[[think]]A city in the north. [No brackets] needed.[[/think]]Oslo.",
    "First: [[think]]one[[/think]] and [[think]]two",
    "[[think]][[/think]]Nothing to think about, [[thin",
)
