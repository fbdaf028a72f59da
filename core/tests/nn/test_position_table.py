"""Tables with a row for each position are filled as requests get longer."""

from __future__ import annotations

import psutil
import pytest
import torch
from plans import build

from llmk.nn.position_table import PositionTable

CPU = torch.device("cpu")


def rows(wanted: range) -> torch.Tensor:
    return torch.arange(wanted.start, wanted.stop, dtype=torch.float32)[:, None] * torch.ones(3)


def test_rows_are_made_as_they_are_reached():
    asked = []

    def made(wanted):
        asked.append(wanted)
        return rows(wanted)

    table = PositionTable(made, 10, CPU, at_once=4)
    place = table.tensor.data_ptr()
    for length, filled in ((1, 4), (4, 4), (5, 8), (10, 10), (10, 10)):
        table.reach(length)
        assert table.filled == filled
        assert table.is_full == (filled == 10)
        assert torch.equal(table.tensor[:filled], rows(range(filled)))
    assert asked == [range(4), range(4, 8), range(8, 10)]
    assert table.tensor.shape == (10, 3)
    assert table.tensor.data_ptr() == place, "recorded steps read it there"


def test_one_request_may_need_several_times_as_many():
    table = PositionTable(rows, 100, CPU, at_once=4)
    table.reach(99)
    assert torch.equal(table.tensor, rows(range(100)))


@pytest.mark.parametrize(("device", "at_once"), [("cpu", 0), ("cpu", 10), ("cpu", 11), ("meta", 4)])
def test_other_tables_are_whole_at_once(device, at_once):
    table = PositionTable(rows, 10, torch.device(device), at_once)
    assert table.filled == 10
    assert table.tensor.device.type == device
    if device == "cpu":
        assert torch.equal(table.tensor, rows(range(10)))


def test_a_build_forgets_tables_that_are_full():
    made = build(position_rows=4)
    tables = [made.position_table(rows, longest) for longest in (3, 6, 9)]
    assert [len(table.tensor) for table in made.position_tables] == [6, 9]
    for length, left in ((5, [9]), (7, [9]), (9, [])):
        made.reach(length)
        assert [len(table.tensor) for table in made.position_tables] == left
    assert all(torch.equal(table, rows(range(len(table)))) for table in tables)


def test_rows_that_no_request_reached_take_no_memory():
    before = psutil.Process().memory_info().rss
    table = PositionTable(rows, 1 << 25, CPU, at_once=1024)
    assert table.tensor.nbytes > 300 << 20
    assert psutil.Process().memory_info().rss - before < 50 << 20
