"""When a provider is lost for good, its nodes go to the others: the plan of an executor as it is now."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from hetero.errors import HeteroError, ProviderError
from hetero.model import Model
from hetero.planner.classes import ShapeClass
from hetero.planner.failover import degraded, replanned
from hetero.planner.plan import Plan
from hetero.planner.planner import Wishes
from hetero.providers.base import Provider
from hetero.providers.registry import create
from hetero.routes import Routes

log = logging.getLogger("hetero.recovery")


class Failover:
    """The plan of one executor, and the routes of its sections; both change when a provider is lost, under the lock of
    the children.

    `model` is what the plan was made of, with `classes` and `wishes`; None where no child can be lost. `states`: bound
    inputs that lie on a child -> the outputs that are their next values.
    """

    def __init__(
        self,
        model: Model | None,
        plan: Plan,
        classes: Sequence[ShapeClass] = (),
        wishes: Wishes | None = None,
    ) -> None:
        self.plan = plan
        self.routes = tuple(map(Routes, plan.sections))
        self.states: Mapping[str, str] = {}
        self._model, self._classes, self._wishes = model, classes, wishes
        self._gone: dict[str, str] = {}

    @property
    def degraded(self) -> dict[str, list[str]]:
        """Providers that are lost -> those that have their nodes now."""
        return degraded(self.plan) if self._gone else {}

    def without(self, child: int, cause: str) -> Plan:
        """The plan that is to be driven, where this child, and those that were named before, are not to be had.

        Raises: ProviderError where no provider is left; what `replanned` raises.
        """
        first = self.plan.providers
        name = first[child].name
        self._gone[name] = cause
        if self._model is None:
            raise ProviderError("the model is not there to be planned again", device=name)
        left: list[Provider] = []
        try:
            for config in first:
                if config.name not in self._gone:
                    try:
                        left.append(create(config))
                    except HeteroError as why:  # there is no such device in this process
                        self._gone[config.name] = why.message
            if not left:
                raise ProviderError(f"no other provider is left: {self._reasons()}", device=name)
            return replanned(self._model, self.plan, left, self._classes, self._wishes, self.states)
        finally:
            for provider in left:
                provider.close()

    def adopt(self, plan: Plan) -> None:
        """This plan is driven from now on."""
        self.plan, self.routes = plan, tuple(map(Routes, plan.sections))
        for lost, homes in self.degraded.items():
            log.warning(
                "provider %s is lost (%s); its nodes go to %s", lost, self._gone[lost], ", ".join(homes)
            )

    def _reasons(self) -> str:
        return "; ".join(f"{name}: {cause}" for name, cause in self._gone.items())
