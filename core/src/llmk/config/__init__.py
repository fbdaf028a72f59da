"""Configuration: a pydantic schema, values merged from all sources, and the origin of every value."""

from llmk.config.plugins_section import PluginsSection
from llmk.config.schema import Config, SelectSection
from llmk.config.settings import Settings, load
from llmk.config.sources import Origin

__all__ = ["Config", "Origin", "PluginsSection", "SelectSection", "Settings", "load"]
