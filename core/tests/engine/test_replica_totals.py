"""What several replicas are together."""

from __future__ import annotations

from msgspec.structs import fields, replace

from llmk.engine.processes.replica_totals import total, unlike
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineStats, ShadowCount

INFO = EngineInfo(
    max_model_len=8, vocab_size=9, block_size=4, num_blocks=3, plan={"model": "m", "wheels": [["a", "1"]]}
)


def test_every_statistic_is_in_the_total() -> None:
    numbers = {field.name: 2 for field in fields(EngineStats) if field.type in ("int", "float", int, float)}
    one = EngineStats(**numbers, pins=["p"], drafted=[3, 1], accepted=[2])
    other = EngineStats(**dict.fromkeys(numbers, 4), pins=["q", "p"], drafted=[1], accepted=[1, 1])
    one.shadows = [ShadowCount("op", "s", "k", "r", compared=1)]
    other.shadows = [ShadowCount("op", "s", "k", "r", compared=2)]
    whole = total([one, other])
    for name in numbers:
        expected = {"up": 1, "flops": 3, "read_bytes": 3, "written_bytes": 3}.get(name, 6)
        assert getattr(whole, name) == expected, name
    assert (whole.pins, whole.drafted, whole.accepted) == (["p", "q"], [4, 1], [3, 1])
    assert [count.compared for count in whole.shadows] == [3]
    assert one.shadows[0].compared == 1, "what replicas reported stays"


def test_it_is_up_where_one_is() -> None:
    assert total([EngineStats(up=0), EngineStats()]).up == 1
    assert total([EngineStats(up=0), EngineStats(up=0)]).up == 0


def test_what_differs_is_named() -> None:
    assert unlike(INFO, replace(INFO, num_blocks=7, max_model_len=5)) == ""
    assert unlike(INFO, replace(INFO, vocab_size=10)) == "its vocab_size is 10, and not 9"
    other = replace(INFO, plan={"model": "m", "wheels": [["a", "2"]]})
    assert unlike(INFO, other) == "its plan's wheels is [['a', '2']], and not [['a', '1']]"
