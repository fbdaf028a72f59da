"""Calls for the examples of dialects, as objects and as Python's calls."""

from __future__ import annotations

WEATHER = '{"name": "weather", "arguments": {"city": "Oslo", "days": [1, 2]}}'
SAY = r'{"name": "say", "arguments": {"text": "}\" \u00e9\ud83d\ude00 [x]\n", "on": true, "n": null}}'
NOW = '{"name": "now", "arguments": {}}'
PYTHON_WEATHER = "weather(city='Oslo', days=[1, 2])"
PYTHON_SAY = r"""say(text='it\'s "}" \u00e9 [x]\n', at={'x': (1.5, -2), 'y': None}, on=True)"""
PYTHON_NOW = "now()"


def with_keys(call: str, name: str = "name", arguments: str = "parameters") -> str:
    """An object with other keys."""
    return call.replace('"name"', f'"{name}"').replace('"arguments"', f'"{arguments}"')
