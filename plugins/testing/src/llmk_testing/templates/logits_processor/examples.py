"""What the conformance kit tries the processor on: parameters that change logits differently."""

NO_STUTTER = ({"penalty": 1.5}, {"penalty": 6})
