"""Configuration: a pydantic schema, merged from all its sources, with the origin of every value."""

from llmk.config.schema import Config, PluginsSection, SelectSection
from llmk.config.settings import Settings, load
from llmk.config.sources import Origin

__all__ = ["Config", "Origin", "PluginsSection", "SelectSection", "Settings", "load"]
