"""Code that kernels of several kinds share: targets, tuned configurations, norms and activations."""
