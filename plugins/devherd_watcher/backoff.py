"""How a program is treated that fails again and again: pure rules, times in monotonic seconds.

supervisord's own pauses end where it gives up (FATAL), and it has none for a program that ends after it was RUNNING.
"""

from __future__ import annotations

from typing import Any

FREE = 2
"""Short lives in a row that cost nothing: what is needed must be back at once after one accident."""


class BackOff:
    """One program's failures. Pauses grow from `first` to `longest`, a life of `stable` is good; all in seconds."""

    def __init__(self, first: float, longest: float, stable: float) -> None:
        self.first, self.longest, self.stable = first, longest, stable
        self.short_lives = 0
        self.revivals = 0

    def ended(self, lived: float) -> float:
        """It ended, unexpectedly, after so many seconds. Returns how long to hold it back; 0 for not at all."""
        self.short_lives = self.short_lives + 1 if lived < self.stable else 0
        if self.short_lives <= FREE:
            return 0.0
        return self._pause(self.short_lives - FREE - 1)

    def failed(self) -> float:
        """supervisord gave it up. Returns how long to wait before it is started again."""
        self.revivals += 1
        return self._pause(self.revivals - 1)

    def lived(self, seconds: float) -> None:
        """It has been running for so long: a good life makes up for what was before."""
        if seconds >= self.stable:
            self.short_lives = self.revivals = 0

    def forget(self) -> None:
        """Somebody stopped or started it on purpose."""
        self.short_lives = self.revivals = 0

    def dump(self) -> dict[str, int]:
        """What a successor should know."""
        return {"short_lives": self.short_lives, "revivals": self.revivals}

    def load(self, saved: Any) -> None:
        """Take over what `dump` gave, or anything else that was in the file."""
        if isinstance(saved, dict):
            for name in ("short_lives", "revivals"):
                value = saved.get(name)
                if type(value) is int and 0 <= value < 1000:
                    setattr(self, name, value)

    def _pause(self, step: int) -> float:
        return min(self.longest, self.first * 2.0 ** min(step, 20))
