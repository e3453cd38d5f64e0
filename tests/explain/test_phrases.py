from jaxpsd._explain.phrases import times_as_many


def test_draws_are_counted_as_far_as_anybody_counts():
    assert times_as_many(1.01) == "about 2 times as many draws"
    assert times_as_many(2.5) == "about 3 times as many draws"
    assert times_as_many(1.5e22) == "more than 10,000 times as many draws"
