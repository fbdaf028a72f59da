"""Ranks on a list of hosts."""
