"""The processes of ranks: what starts them, what passes between them and the engine, and the executor of them all."""
