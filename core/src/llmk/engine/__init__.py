"""Request, schedule, run, sample, output: the engine, and the Python API on top of it."""
