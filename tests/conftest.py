"""For every test: how long an example takes is no property of the code, and a loaded machine is no fault of it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
