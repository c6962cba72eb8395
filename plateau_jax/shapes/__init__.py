"""The shapes of segments.

`series` has the equation of every shape, as a series around the middle of a piece. `known_shapes`
has the list of shapes, and how users write them.
"""
