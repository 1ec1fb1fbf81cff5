"""What Ray loads into every process and children have no use for: kept out while a child starts."""

from __future__ import annotations

import sys
from typing import Any, cast

_UNNEEDED = "pydantic"
"""Ray registers pickling of its models before the first value crosses, and imports it for that: 0.1 s, a tenth of what
a fresh child takes. Ray does without where it is not installed."""


def keep_out() -> None:
    """Of an actor that has just been made, before it is told anything: as if it were not installed, until `let_in`."""
    sys.modules.setdefault(_UNNEEDED, cast(Any, None))


def let_in() -> None:
    """Whoever needs it from now on, an extension say, can import it."""
    if sys.modules.get(_UNNEEDED, sys) is None:
        del sys.modules[_UNNEEDED]
