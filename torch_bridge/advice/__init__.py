"""Warnings from watching a program. Nothing here changes a value; `advise=False` turns it off."""
