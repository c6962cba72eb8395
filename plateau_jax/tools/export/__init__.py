"""A curve without this library: as a Python file, and as test vectors for other languages.

`rows` (the rows of a table with their pieces, and steps that touch each piece), `python_source`
(the Python file), `vectors` (test vectors).
"""
