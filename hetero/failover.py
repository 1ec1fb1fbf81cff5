"""When a provider is lost for good, its partitions go to the best of the others that takes them."""

from __future__ import annotations

import logging

from hetero.errors import HeteroError, ProviderError
from hetero.model import Model
from hetero.planner.failover import moved, stand_in
from hetero.planner.plan import Plan
from hetero.providers.registry import create

log = logging.getLogger("hetero.recovery")


class Failover:
    """The plan of one executor as it is now. `degraded`: device lost -> provider that has its partitions instead.

    `model` is what the plan was made of; None where no child can be lost.
    """

    def __init__(self, model: Model | None, plan: Plan) -> None:
        self.plan = plan
        self.degraded: dict[str, str] = {}
        self._model = model
        self._first = plan.providers
        self._gone: set[str] = set()

    def __call__(self, child: int, cause: str) -> Plan:
        """The plan with the partitions of `child` elsewhere. What it gave for this child before did not do.

        Raises: ProviderError where no other provider takes them.
        """
        if self._model is None:
            raise ProviderError("the model is not there to be planned again", device=self._first[child].name)
        name = self._first[child].name
        self._gone.add(name)
        tried = self.degraded.get(name)
        if tried is not None:
            self._gone.add(f"{name} on {tried.split(':')[0]}")
        reasons = []
        for candidate in self._first:
            kind = candidate.name.split(":")[0]
            config = stand_in(self.plan, candidate)
            if candidate.name in self._gone or f"{name} on {kind}" in self._gone or config is None:
                continue
            provider = None
            try:
                provider = create(config)
                self.plan = moved(self._model, self.plan, child, provider)
            except HeteroError as why:
                reasons.append(str(why))
                continue
            finally:
                if provider is not None:
                    provider.close()
            self.degraded[name] = config.name
            log.warning("provider %s is lost (%s); its partitions go to %s", name, cause, config.name)
            return self.plan
        raise ProviderError(
            f"no other provider takes over: {'; '.join(reasons) or 'there is none'}", device=name
        )
