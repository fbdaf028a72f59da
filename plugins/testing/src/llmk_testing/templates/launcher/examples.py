"""Examples for the conformance kit: the section ``[plugin.acme]`` that the launcher is tried with."""

SECTION = {"prefix": ["env", "ACME_PLACE={place}"]}
