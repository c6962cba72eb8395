"""The shapes of segments.

`shape` defines what a shape is. `line`, `cosine`, `root`, `exponential`, `power` and
`inverse_power` each contain all that there is to know about the shapes of a family. `known_shapes`
has the list, and how users write them.
"""
