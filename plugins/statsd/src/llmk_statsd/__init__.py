"""Sends the metrics of an llmk server to a StatsD daemon.

``llmk_statsd.specs`` is the plugin module.
"""
