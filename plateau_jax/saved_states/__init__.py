"""What is saved.

`formats` (kinds of states, their entries, and errors from malformed ones), `storable` (pickles and
copies of frozen dataclasses).
"""
