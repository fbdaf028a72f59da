"""The scheduling policies that come with the core, a plugin like any other."""
