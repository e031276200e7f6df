"""What all tests share: no limit per generated example, for cores are shared and a pause is no fault of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
