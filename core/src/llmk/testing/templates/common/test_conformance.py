from llmk.testing import conformance

test_conformance = conformance("$distribution")
