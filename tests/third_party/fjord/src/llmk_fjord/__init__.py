"""Plugins of several kinds, written from the documentation alone."""
