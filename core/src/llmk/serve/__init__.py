"""The HTTP server: streams of typed events from the engine, and a renderer for each response format."""
