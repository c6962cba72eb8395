"""Tools around a run: pictures, files, comparisons, the command line.

`batch_plan` (schedules of batch sizes), `configuration` (curves from files and from text), and a
folder for each of the others.

No learning rate of a curve needs these files. They import the curve, whose folders stand next to
this one, and each other, but nothing from `torch_bridge`. The curve imports a tool only inside a
method such as `Curve.plot`, when it is called.
"""
