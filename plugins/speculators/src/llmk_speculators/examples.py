"""Examples for the conformance kit: options of ``[plugin.speculators]``."""

OPTIONS = (
    {"min_match": 2, "max_match": 4, "max_spec_factor": 2.0},
    {"min_match": 1, "max_match": 1, "max_spec_factor": 0.5},
    {"min_match": 3, "max_match": 32, "max_spec_factor": 1e9},
)
