"""HTTP: one stream of typed events from the engine, and a renderer for each wire format."""
