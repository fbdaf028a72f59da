"""A stranger's wheel: one plugin of each kind that llmk-orchard lacks."""
