"""Curves: how they are written, and the numbers that they accept."""

from support.surface.limits import varied

from plateau_jax import Curve, PlateauCurve, StagedCurve

# Configuration files.
Curve.from_dict({"kind": "plateau", "total_steps": 10})  # PlateauCurve
Curve.from_dict({"kind": "staged", "stages": [[10, 1.0]]})  # StagedCurve
Curve.from_dict({})  # raises ValueError
Curve.from_dict({"kind": "plateau"})  # raises TypeError
Curve.from_dict({"kind": "plateau", "total_steps": 10, "peak": 0.1})  # raises ValueError
Curve.from_dict([])  # raises TypeError

# A warmup and a decay.
PlateauCurve(100)  # PlateauCurve
PlateauCurve(1e2)  # raises TypeError
PlateauCurve("1.5k")  # PlateauCurve
PlateauCurve("1.2345k")  # raises ValueError
PlateauCurve("10K")  # raises ValueError
PlateauCurve(100, plateaus=[50, 10])  # raises TypeError
PlateauCurve(100, plateaus=[(0.5, 0.1)])  # PlateauCurve, warns CurveWarning
PlateauCurve(100, min_lr_ratio=1e-5)  # PlateauCurve, warns CurveWarning
PlateauCurve(varied(100))  # 1 … 2147483647, else ValueError
PlateauCurve(100, warmup_steps=varied(10))  # 0 … 99, else ValueError
PlateauCurve(100, warmup_steps=f"{varied(10)}%")  # 0 … 99, else ValueError
PlateauCurve(100, plateaus=[(varied(50), 10)])  # 0 … 90, else ValueError
PlateauCurve(100, plateaus=[(50, varied(10))])  # 0 … 50, else ValueError
PlateauCurve(100, absolute_plateaus=[(varied(50), 10)])  # 0 … 90, else ValueError
PlateauCurve(100, absolute_plateaus=[(50, varied(10))])  # 0 … 50, else ValueError
PlateauCurve(100, min_lr_ratio=varied(0.5))  # 0.0 … 1.0, else ValueError
PlateauCurve(100, init_lr_ratio=varied(0.5))  # 0.0 … 1.0, else ValueError
PlateauCurve(100, decay_shape=f"1-x^{varied(2.0)}")  # 0.05 … 20.0, else ValueError
PlateauCurve(100, decay_shape=f"(1-x)^{varied(2.0)}")  # 0.05 … 20.0, else ValueError

# Stages.
StagedCurve([(10, 1.0), (20,)])  # StagedCurve
StagedCurve([("10k", 1.0)])  # StagedCurve
StagedCurve([(10, 1e-4)])  # StagedCurve, warns CurveWarning
StagedCurve([("rest", 1.0)])  # raises ValueError
StagedCurve([("rest", 1.0)], total_steps=10)  # StagedCurve
StagedCurve(10)  # raises TypeError
StagedCurve([(10,), (20, 0.5)], start=1.0).stages  # ((10, None, 'linear'), (20, 0.5, 'linear'))
StagedCurve([(10,), (20, 0.5)], start=1.0).segments[0]  # Segment(first_step=0, last_step=9, kind='plateau', start=1.0, end=1.0)
StagedCurve([(10,), (20, 0.5)], start=1.0).segments[1]  # Segment(first_step=10, last_step=29, kind='linear stage', start=1.0, end=0.5)
StagedCurve([(10,), (20, 0.5)], start=1.0).segments[2]  # Segment(first_step=30, last_step=None, kind='end', start=0.5, end=0.5)
StagedCurve([(varied(10), 1.0)])  # 1 … 2147483647, else ValueError
StagedCurve([(10, 1.0), (varied(10), 0.5)])  # 0 … 2147483637, else ValueError
StagedCurve([(10, varied(0.5))])  # 0.0 … 1.0, else ValueError
StagedCurve([(10, 0.5)], start=varied(0.5))  # 0.0 … 1.0, else ValueError
StagedCurve([(10, 0.5, f"1-x^{varied(2.0)}")])  # 0.05 … 20.0, else ValueError
StagedCurve([(10, 0.5, f"(1-x)^{varied(2.0)}")])  # 0.05 … 20.0, else ValueError
StagedCurve([(10, 0.5, f"t^-{varied(2.0)}")], start=1.0)  # 0.25 … 4.0, else ValueError
StagedCurve([(10, varied(0.5), "t^-1")], start=1.0)  # 5e-324 … 1.0, else ValueError
StagedCurve([(10, varied(0.5), "exponential")], start=1.0)  # 5e-324 … 1.0, else ValueError
StagedCurve.wsd(100, warmup_steps="2%", decay_steps="20%")  # StagedCurve
StagedCurve.wsd(100, warmup_steps=60, decay_steps=60)  # raises ValueError
StagedCurve.wsd(100, warmup_steps=0.02, decay_steps=60)  # raises TypeError
StagedCurve.wsd(varied(100), warmup_steps=10, decay_steps=10)  # 20 … 2147483647, else ValueError
StagedCurve.wsd(100, warmup_steps=varied(10), decay_steps=10)  # 0 … 90, else ValueError
StagedCurve.wsd(100, warmup_steps=10, decay_steps=varied(10))  # 0 … 90, else ValueError
StagedCurve.through([(0, 0.0), (10, 1.0)])  # StagedCurve
StagedCurve.through([0, 1])  # raises TypeError
StagedCurve.through([(0, 0.0), (varied(10), 1.0)])  # 1 … 2147483647, else ValueError
