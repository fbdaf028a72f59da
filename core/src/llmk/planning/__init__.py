"""From a checkpoint to a plan: facts, sites, queries, choices, and a forecast of memory. Needs no torch."""
