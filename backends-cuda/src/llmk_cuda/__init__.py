"""llmk on NVIDIA GPUs: the platform, library kernels and configuration defaults. Importing it needs no torch."""
