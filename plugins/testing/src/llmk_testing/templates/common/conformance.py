from llmk_testing import conformance

test_conformance = conformance("$distribution")
