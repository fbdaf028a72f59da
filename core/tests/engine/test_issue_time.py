"""When the next step is issued: as late as the device does not wait for it."""

from __future__ import annotations

import pytest

from llmk.engine.scheduling.issue_time import IssueTime


def after(*steps: tuple[int, float], host: float = 0.0) -> IssueTime:
    """What has seen steps of so many tokens and seconds."""
    times = IssueTime()
    for num_tokens, seconds in steps:
        times.take(num_tokens, seconds)
        times.take_host(host, prompts=False)
    return times


def spare(
    times: IssueTime, num_tokens: int, *, ago: float = 0.0, prompts: bool = False, expected: float = 0.0
) -> float:
    """What is left of a step that started so many seconds ago."""
    return times.spare(num_tokens, 100.0 - ago, 100.0, prompts=prompts, expected=expected)


def test_a_step_is_issued_shortly_before_the_one_that_runs_ends() -> None:
    times = after((8, 0.010), (8, 0.012), host=0.001)
    assert spare(times, 8) == pytest.approx(0.95 * 0.010 - 0.002 - 0.0003)
    assert spare(times, 8, ago=0.004) == pytest.approx(0.95 * 0.010 - 0.002 - 0.0003 - 0.004)
    assert spare(times, 8, ago=1.0) == 0.0


def test_the_fastest_of_recent_steps_of_the_size_counts() -> None:
    times = after(*[(300, 0.050)] * 3, (8, 0.010), (310, 0.040), *[(8, 0.012)] * 8)
    assert spare(times, 8) == pytest.approx(0.95 * 0.012 - 0.0003)
    assert spare(times, 290) == pytest.approx(0.95 * 0.040 - 0.0003)


@pytest.mark.parametrize("num_tokens", [7, 9, 1000])
def test_nothing_is_put_off_for_a_step_of_unknown_length(num_tokens: int) -> None:
    times = after((8, 0.010))
    assert spare(times, num_tokens) == 0.0
    times.take_late(num_tokens)
    assert spare(times, num_tokens) == 0.0


def test_less_is_relied_upon_after_a_step_was_issued_late() -> None:
    times = after((8, 0.010))
    times.take_late(8)
    assert spare(times, 8) == pytest.approx(0.95 * 0.9 * 0.010 - 0.0003)
    for _ in range(8):
        times.take(8, 0.007)
    assert spare(times, 8) == pytest.approx(0.95 * 0.007 - 0.0003)


def test_sizes_are_forgotten() -> None:
    times = IssueTime()
    for number in range(2000):
        times.take(1 << number, 1.0)
    assert len(times._recent) <= 512


def test_steps_with_prompts_may_take_the_host_longer() -> None:
    times = after((8, 0.030), host=0.001)
    assert spare(times, 8, prompts=True) == 0.0, "it is not known how long"
    times.take_host(0.010, prompts=True)
    assert spare(times, 8, prompts=True) == pytest.approx(0.95 * 0.030 - 0.020 - 0.0003)
    times.take_host(0.020, prompts=True)
    assert spare(times, 8, prompts=True) == pytest.approx(0.95 * 0.030 - 0.022 - 0.0003)
    assert spare(times, 8) == pytest.approx(0.95 * 0.030 - 0.002 - 0.0003)


def test_steps_with_prompts_take_the_share_of_an_estimate_that_recent_ones_took() -> None:
    times = after((8, 0.010), host=0.001)
    times.take_host(0.004, prompts=True)
    assert spare(times, 500, prompts=True, expected=0.040) == 0.0, "none ran yet"
    for tokens, seconds, expected in ((600, 0.030, 0.024), (90, 0.018, 0.020), (700, 0.060, 0.050)):
        times.take(tokens, seconds, expected=expected)
    left = spare(times, 500, prompts=True, expected=0.040)
    assert left == pytest.approx(0.95 * 0.9 * 0.040 - 0.008 - 0.0003)
    times.take_late(500, expected=0.040)
    left = spare(times, 500, prompts=True, expected=0.080)
    assert left == pytest.approx(0.95 * 0.9 * 0.9 * 0.080 - 0.008 - 0.0003)
    assert spare(times, 8) == pytest.approx(0.95 * 0.010 - 0.002 - 0.0003)
