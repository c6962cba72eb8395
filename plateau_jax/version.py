"""The version of this library. The build reads it here."""

VERSION = "1.0.0"
