"""What our actors are held against: an actor with nothing in it, in a file of its own, which is all that it imports."""

from __future__ import annotations

import os


class Bare:
    """It is there."""

    def answer(self) -> int:
        """And says so."""
        return 1

    def pid(self) -> int:
        """Where."""
        return os.getpid()
