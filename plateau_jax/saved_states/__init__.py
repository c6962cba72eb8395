"""What is saved, and read by later versions.

`formats` (kinds of states, and how they grow), `state_errors` (errors from malformed states),
`storable` (pickles and copies of frozen dataclasses).
"""
