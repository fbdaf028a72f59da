from __future__ import annotations

from llmk.api import SchedulingPolicy
from llmk.kernel.loader import load_object
from llmk_policies.specs import llmk_scheduling_policies


def test_specs_name_policies_that_can_be_made():
    specs = list(llmk_scheduling_policies())
    assert [spec.id for spec in specs] == ["policies.fcfs", "policies.priority", "policies.fair"]
    for spec in specs:
        assert SchedulingPolicy in load_object(spec.implementation, plugin="llmk-policies").__mro__
        assert spec.summary
