"""Small-M GEMMs: products of a few rows of activations with a weight."""
