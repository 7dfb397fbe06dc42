"""Health policy: evidence about physical things in, verdicts out."""

from devherd.health.engine import HealthEngine
from devherd.health.saved import SavedFault, SavedHealth, SavedThing

__all__ = ["HealthEngine", "SavedFault", "SavedHealth", "SavedThing"]
