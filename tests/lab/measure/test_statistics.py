"""Numbers out of samples: percentiles, intervals, and what counts as a difference."""

from __future__ import annotations

import pytest

from headrace_lab.measure.statistics import (
    abba,
    effect,
    interval,
    jain,
    median,
    noise_floor,
    percentile,
    weighted_percentile,
)


def test_a_percentile_is_a_sample() -> None:
    """The nearest rank, with nothing made up between two samples."""
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, q) for q in (0.0, 0.2, 0.5, 0.9, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert percentile([], 0.5) is None


def test_percentiles_of_counts_are_those_of_the_samples() -> None:
    counts = [(1.0, 90), (20.0, 9), (300.0, 1)]
    samples = [value for value, count in counts for _ in range(count)]
    for q in (0.01, 0.5, 0.9, 0.91, 0.99, 1.0):
        assert weighted_percentile(counts, q) == percentile(samples, q)
    assert weighted_percentile([], 0.5) is None


def test_median_and_its_interval() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    values = [10.0 + n / 10 for n in range(30)]
    low, high = interval(values)
    assert low < median(values) < high
    assert (low, high) == interval(values)


def test_the_order_is_abba() -> None:
    """What drifts hits each as often early as late."""
    orders = [abba(["a", "b"], turn) for turn in range(4)]
    assert orders == [["a", "b"], ["b", "a"], ["b", "a"], ["a", "b"]]


def test_an_effect_below_the_noise_floor_is_none() -> None:
    aa = [-1.0, 1.2, -0.8, 0.9, 1.1, -1.2, 0.4]
    floor = noise_floor(aa)
    assert floor is not None
    assert 0.4 < floor <= 1.2
    small = effect([(10.0, 10.0 + d) for d in (0.2, 0.25, 0.3, 0.2, 0.22)], floor)
    assert small is not None
    assert not small.is_one
    assert small.as_words("ms") == "none"
    large = effect([(10.0, 15.0 + d) for d in (0.2, 0.25, 0.3, 0.2, 0.22)], floor)
    assert large is not None
    assert large.is_one
    assert large.as_words("ms").startswith("+5.22 [+5.2, ")


def test_an_effect_whose_interval_holds_zero_is_none() -> None:
    made = effect([(0.0, d) for d in (-5.0, 6.0, -4.0, 5.0, 4.0)])
    assert made is not None
    assert made.as_words() == "none"
    assert effect([]) is None
    assert noise_floor([]) is None


def test_jains_index() -> None:
    assert jain([1.0, 1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([3.0, 1.0]) == pytest.approx(0.8)
    assert jain([]) is None
