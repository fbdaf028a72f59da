"""llmk's models on JAX, built from the same trees as on torch. Imports no torch."""
