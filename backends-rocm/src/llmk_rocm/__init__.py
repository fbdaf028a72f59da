"""AMD GPUs, through torch's ROCm build. ``specs`` is the plugin module, and imports no torch."""
