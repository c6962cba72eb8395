"""The LSTM example: its forecasts; a run that is interrupted and resumed prints the same lines."""

import numpy as np
import pytest
from statsmodels.datasets import co2
from support.programs import assert_is_a_picture, finish, interrupt, later_lines, number_after, start

pytestmark = pytest.mark.slow

LSTM = ("train_lstm.py", "--epochs", "30", "--hidden", "16", "--every", "50", "--output", "pictures/co2.png")


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    """The folder and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("lstm")
    return folder, finish(start(folder, *LSTM))


def test_lstm_beats_both_naive_forecasts(lstm):
    _, lines = lstm
    level = co2.load_pandas().data["co2"].resample("MS").mean().interpolate().to_numpy()
    months = np.arange(len(level) * 4 // 5, len(level) - 12)[:, None]
    later = months + np.arange(1, 13)
    rise = level[later] - level[months]
    rise_a_year_before = level[later - 12] - level[months - 12]
    for label, errors in (("last value:", rise), ("last year's changes:", rise - rise_a_year_before)):
        assert number_after(label, lines) == pytest.approx(np.sqrt(np.square(errors).mean()), abs=6e-4)
    assert number_after("LSTM:", lines) < 0.9 * number_after("last year's changes:", lines)


def test_lstm_plots_its_forecast(lstm):
    folder, _ = lstm
    assert_is_a_picture(folder / "pictures" / "co2.png")


def test_resume_prints_same_lines_as_uninterrupted_run(lstm, tmp_path):
    _, uninterrupted = lstm
    # Interrupt between two of the compared lines, which are 50 updates apart.
    updates = interrupt(start(tmp_path, *LSTM, "--every", "30"), "    30 ")
    assert not list(tmp_path.glob("*.partial"))
    resumed = finish(start(tmp_path, *LSTM, "--resume"))
    assert resumed[0].startswith(f"resumed from train_lstm.pt after update {updates} of ")
    assert resumed[1:] == later_lines(uninterrupted, updates)


def test_resume_uses_settings_of_the_checkpoint(lstm, tmp_path):
    _, uninterrupted = lstm
    interrupt(start(tmp_path, *LSTM), "    50 ")
    status, _, errors = start(tmp_path, "train_lstm.py", "--resume", "--epochs", "7").finish()
    assert status == 1
    assert errors.endswith("; without --epochs and --window, --resume continues as planned\n")
    resumed = finish(start(tmp_path, "train_lstm.py", "--resume"))
    assert resumed[-1] == uninterrupted[-1]
    assert [line for line in resumed if line.startswith("  LSTM:")] == [
        line for line in uninterrupted if line.startswith("  LSTM:")
    ]
