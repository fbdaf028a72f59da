"""When the next step is issued: as late as the device does not wait for it."""

from __future__ import annotations

import pytest

from llmk.engine.scheduling.issue_time import IssueTime


def after(*steps: tuple[int, float], host: float = 0.0) -> tuple[IssueTime, float]:
    """What has seen steps of so many tokens and seconds, each issued when the one before ended; and the time."""
    times, now = IssueTime(), 100.0
    for num_tokens, seconds in steps:
        times.take(num_tokens, now, now + seconds, waited=True)
        times.take_host(host, prompts=False)
        now += seconds
    return times, now


def test_a_step_is_issued_shortly_before_the_one_that_runs_ends() -> None:
    times, now = after((8, 0.010), (8, 0.012), host=0.001)
    spare = times.spare(8, issued=now - 0.005, now=now, prompts=False)
    assert spare == pytest.approx(0.95 * 0.010 - 0.002 - 0.0003), "it started when the one before had ended"
    later = now + 0.003
    assert times.spare(8, issued=later, now=later, prompts=False) == pytest.approx(spare), "or when it was issued"
    assert times.spare(8, issued=now, now=now + 0.004, prompts=False) == pytest.approx(spare - 0.004)
    assert times.spare(8, issued=now, now=now + 1.0, prompts=False) == 0.0


def test_the_fastest_of_recent_steps_of_the_size_counts() -> None:
    times, now = after(*[(300, 0.050)] * 3, (8, 0.010), (310, 0.040), *[(8, 0.012)] * 8)
    assert times.spare(8, now, now, prompts=False) == pytest.approx(0.95 * 0.012 - 0.0003)
    assert times.spare(290, now, now, prompts=False) == pytest.approx(0.95 * 0.040 - 0.0003)


@pytest.mark.parametrize("num_tokens", [7, 9, 1000])
def test_nothing_is_put_off_for_a_step_of_unknown_length(num_tokens: int) -> None:
    times, now = after((8, 0.010))
    assert times.spare(num_tokens, now, now, prompts=False) == 0.0


def test_a_step_that_the_host_did_not_wait_for_says_only_that_it_ended() -> None:
    times, now = after((8, 0.010))
    times.take(8, now, now + 1.0, waited=False)
    assert times.spare(8, now, now + 1.0, prompts=False) == pytest.approx(0.95 * 0.010 - 0.0003)


def test_sizes_are_forgotten() -> None:
    times = IssueTime()
    for number in range(2000):
        times.take(1 << number, 0.0, 1.0, waited=True)
    assert len(times._recent) <= 512


def test_steps_with_prompts_may_take_the_host_longer() -> None:
    times, now = after((8, 0.030), host=0.001)
    assert times.spare(8, now, now, prompts=True) == 0.0, "it is not known how long"
    times.take_host(0.010, prompts=True)
    assert times.spare(8, now, now, prompts=True) == pytest.approx(0.95 * 0.030 - 0.020 - 0.0003)
    times.take_host(0.020, prompts=True)
    assert times.spare(8, now, now, prompts=True) == pytest.approx(0.95 * 0.030 - 0.022 - 0.0003)
    assert times.spare(8, now, now, prompts=False) == pytest.approx(0.95 * 0.030 - 0.002 - 0.0003)


def test_steps_with_prompts_take_the_share_of_an_estimate_that_recent_ones_took() -> None:
    times, now = after((8, 0.010), host=0.001)
    times.take_host(0.004, prompts=True)
    assert times.spare(500, now, now, prompts=True, expected=0.040) == 0.0, "none ran yet"
    for tokens, seconds, expected in ((600, 0.030, 0.024), (90, 0.018, 0.020), (700, 0.060, 0.050)):
        times.take(tokens, now, now + seconds, waited=True, expected=expected)
        now += seconds
    spare = times.spare(500, now, now, prompts=True, expected=0.040)
    assert spare == pytest.approx(0.95 * 0.9 * 0.040 - 0.008 - 0.0003)
    assert times.spare(8, now, now, prompts=False) == pytest.approx(0.95 * 0.010 - 0.002 - 0.0003)
