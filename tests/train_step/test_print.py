"""What `print` shows of a training step."""

from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.reads import reads_of
from support.training.steps import CURVE, make_step, train
from torch.optim import SGD

from plateau_jax import DataClock, PlateauCurve
from torch_bridge import TrainStep


def test_print_shows_curve_step_and_lr():
    def five(batch):
        return 5

    step = make_step(clock=DataClock(2), count=five)
    data = batches(4)
    data[3] = nonfinite(data[3])
    assert reads_of(lambda: repr(step)) == []
    assert repr(step) == f"TrainStep({CURVE})"
    train(step, data)
    lr = float(f"{CURVE(7) * 0.01:.6g}")
    counts = "applied=3, skipped=1, consumed=15, unit=2"
    assert str(step) == f"TrainStep({CURVE}, curve_step=7, lr={lr}, {counts})"
    shown = f"TrainStep({CURVE}, curve_step=0, lr=0.005, applied=0, skipped=0)"
    assert str(make_step()) == shown


def test_print_of_several_curves_is_one_line():
    model = Net()
    second_curve = PlateauCurve(500)
    first = SGD(model.first.parameters(), lr=0.5)
    last = SGD(model.last.parameters(), lr=0.5)
    same = TrainStep(model, [first, last], mean_loss, second_curve)
    assert str(same).startswith(f"TrainStep({second_curve}, curve_step=0, lr=0.5, ")
    different = TrainStep(model, [first, last], mean_loss, [CURVE, second_curve])
    assert "lr=[0.25, 0.5], " in str(different)
    plateaus = [(number, 0.1) for number in range(90)]
    step = make_step(curve=PlateauCurve(10**6, plateaus=plateaus))
    for shown in (repr(step), str(step)):
        assert len(shown) < 400
        assert "\n" not in shown
