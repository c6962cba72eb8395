"""The learning rates of curves have the recorded bits, and their tables the recorded integers."""

import pytest
from golden.tables import describe_tables
from golden.write import LEARNING_RATES, TABLES, describe_curves, read


def test_curves_have_the_recorded_learning_rates():
    assert describe_curves() == read(LEARNING_RATES)


@pytest.mark.slow
def test_tables_have_the_recorded_integers():
    """The learning rates above hide a change of a few units of a coefficient."""
    assert describe_tables() == read(TABLES)
