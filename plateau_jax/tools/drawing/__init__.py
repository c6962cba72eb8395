"""Pictures and tables of curves, from their segments and a function of the step.

`sampling` (steps to draw, shaded spans), `legend` (labels of curves), `tables` (text and HTML),
`segment_table` (the table of `describe`, of notebooks and of the design page), `plots`
(matplotlib), `notebook` (SVG).
"""
