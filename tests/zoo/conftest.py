"""Profiles measured by one test serve the others; nothing reaches the user's own cache."""

from tests.frontends.conftest import _shared_cache

__all__ = ["_shared_cache"]
