"""The version of the package: that of libfire, whose binding it is."""

VERSION = "0.2.0"
