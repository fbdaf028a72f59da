"""What plugins provide to the engine: executors, scheduling policies and routers."""
