"""Runs llmk on a Ray cluster."""
