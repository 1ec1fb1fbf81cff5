"""Overrides: node-name patterns that a user pins to providers, whatever else would decide."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from hetero.errors import OptionError, PlanError


def pinned(
    overrides: Mapping[str, str], names: Sequence[str], inside: Iterable[str], providers: Sequence[str]
) -> dict[int, tuple[int, str]]:
    """Node (its place in `names`) -> (provider's place in `providers`, the pattern).

    Patterns are globs of whole names, case and all: `*` any text, `?` a letter, `[0-5]` one of these, `[!ab]` none of
    them. The first pattern that matches a node decides. `inside` are names of nodes in bodies, which cannot be pinned:
    they go with the node that has the body.
    Raises: PlanError for a pattern that matches nothing; OptionError for an unknown provider.
    """
    found: dict[int, tuple[int, str]] = {}
    inner = list(inside)
    for pattern, provider in overrides.items():
        if not isinstance(pattern, str) or not isinstance(provider, str):
            raise OptionError(
                f"overrides map node-name patterns to provider names, not {pattern!r} to {provider!r}",
                operand="overrides",
            )
        if provider not in providers:
            raise OptionError(
                f"override {pattern!r} names the provider {provider!r}; there are: {', '.join(providers)}",
                operand="overrides",
                device=provider,
            )
        child = providers.index(provider)
        matches = re.compile(fnmatch.translate(pattern)).match
        hits = [index for index, name in enumerate(names) if matches(name)]
        if not hits:
            within = next((name for name in inner if matches(name)), None)
            raise PlanError(
                f"override {pattern!r} matches no node"
                + (f" but {within!r}, which is in a body and goes with its node" if within else ""),
                operand=pattern,
                device=provider,
            )
        for index in hits:
            found.setdefault(index, (child, pattern))
    return found
