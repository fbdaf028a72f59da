"""What plugins provide to the engine: executors and scheduling policies."""
