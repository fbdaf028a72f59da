"""Intel GPUs, through torch's XPU build. ``specs`` is the plugin module, and imports no torch."""
