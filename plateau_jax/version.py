"""The version of this library. The build reads it here."""

VERSION = "0.9.0"
