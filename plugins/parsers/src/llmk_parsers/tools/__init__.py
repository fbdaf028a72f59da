"""Tool-call dialects, one module each."""
