"""The specs of the hold rules, one file for each rule, with the errors of its arguments."""
