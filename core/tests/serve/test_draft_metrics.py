"""What an engine that drafts reports of its drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from llmk.engine.wire.request import EngineStats
from llmk.serve.metrics.prometheus import EngineCollector


def exposed(stats: EngineStats) -> list[str]:
    """The lines of ``/metrics`` about drafts."""
    engine: Any = SimpleNamespace(stats=stats, model_name="m")
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine))
    return [line for line in generate_latest(registry).decode().splitlines() if line.startswith("llmk_spec_decode")]


def test_drafts_are_counted_by_position() -> None:
    stats, other = EngineStats(), EngineStats()
    for drafted, accepted in ((2, 2), (4, 1), (1, 0), (3, 3)):
        stats.count_drafts(drafted, accepted)
    stats.count_drafts(0, 0)
    assert (stats.drafted, stats.accepted) == ([4, 3, 2, 1], [3, 2, 1, 0])
    assert other.drafted == []
    assert exposed(stats) == [
        'llmk_spec_decode_num_drafts_total{model_name="m"} 4.0',
        'llmk_spec_decode_num_draft_tokens_total{model_name="m"} 10.0',
        'llmk_spec_decode_num_accepted_tokens_total{model_name="m"} 6.0',
        *(
            f'llmk_spec_decode_num_draft_tokens_per_pos_total{{model_name="m",position="{at}"}} {count}.0'
            for at, count in enumerate((4, 3, 2, 1))
        ),
        *(
            f'llmk_spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="{at}"}} {count}.0'
            for at, count in enumerate((3, 2, 1, 0))
        ),
        'llmk_spec_decode_tokens_per_step{model_name="m"} 2.5',
    ]


def test_an_engine_that_drafts_nothing_reports_nothing() -> None:
    assert exposed(EngineStats()) == []
