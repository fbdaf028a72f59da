"""What plugins provide to load models: sources, and formats of checkpoints."""
