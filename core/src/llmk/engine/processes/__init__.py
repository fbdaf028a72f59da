"""Where engines run: clients, the engine's process, its workers, and the supervisor."""
