"""The same values with text and with integers; pyright checks that the types accept both."""

from plateau_jax import BatchPlan, Curve, DataClock, PlateauCurve, StagedCurve

Value = Curve | DataClock | BatchPlan


def text_and_integers() -> list[tuple[Value, Value]]:
    """Return pairs of equal values."""
    text = PlateauCurve("10k", warmup_steps="500", absolute_plateaus=[("6k", 100)])
    integers = PlateauCurve(10_000, warmup_steps=500, absolute_plateaus=[(6_000, 100)])
    plan_of_text = BatchPlan([(0, "500k"), ("2B", "4M")])
    plan = BatchPlan([(0, 500_000), (2 * 10**9, 4_000_000)])
    return [
        (text, integers),
        (text.cooldown("6k", "1500"), integers.cooldown(6_000, 1_500)),
        (text.part("1k", "4000"), integers.part(1_000, 4_000)),
        (plan_of_text, plan),
        (
            plan_of_text.scale(text, "1M", reference="4M"),
            plan.scale(integers, 1_000_000, reference=4_000_000),
        ),
        (
            StagedCurve([("2k", 1.0), ("rest",)], total_steps="10000"),
            StagedCurve([(2_000, 1.0), (8_000,)]),
        ),
        (
            StagedCurve.wsd("10k", warmup_steps="1k", decay_steps="2000"),
            StagedCurve.wsd(10_000, warmup_steps=1_000, decay_steps=2_000),
        ),
        (
            StagedCurve.through([("0", 0), ("0.5k", 1), ("2M", 0)]),
            StagedCurve.through([(0, 0), (500, 1), (2_000_000, 0)]),
        ),
        (DataClock("64k", "500000"), DataClock(64_000, 500_000)),
    ]
