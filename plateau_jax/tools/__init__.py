"""What a person uses around a run: pictures, files, comparisons, forecasts, the command line.

No training run needs these folders. They import the curve, whose folders stand next to this one,
and each other, but nothing from `torch_bridge`. The curve imports a tool only inside a method such
as `Curve.plot`, when it is called.
"""
