"""A curve without this library: as a Python file, and as test vectors for other languages.

`segments` (the rows of a table as whole integers), `template` (the file with every shape), `source`
(the file for one curve), `vectors` (test vectors).
"""
