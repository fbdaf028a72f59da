"""Examples for the conformance kit: parameters that change logits differently."""

NO_STUTTER = ({"penalty": 1.5}, {"penalty": 6})
