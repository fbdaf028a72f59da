"""The page of an llmk server."""
