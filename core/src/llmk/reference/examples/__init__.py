"""Examples of the core's ops: how their arguments are made from facts. ``llmk.reference.contracts`` names them."""
