"""Batches: files of requests that run behind other requests, and go on after a restart."""
