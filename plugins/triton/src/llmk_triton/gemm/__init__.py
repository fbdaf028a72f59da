"""Small-M GEMMs: a few rows of activations times a weight."""
