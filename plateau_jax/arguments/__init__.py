"""The arguments that users pass.

`checks` (every check, and messages that begin with the path of an argument), `curve_warning` (the
warning about arguments that are valid, but probably a mistake).
"""
