"""Does what the recovery machine says, and tells it what has happened: who is gone, who hangs, whose step it was."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import ray
import ray.exceptions as rex

from actors.checkpoints import Checkpoints
from actors.events import (
    ActorLost,
    Closed,
    Command,
    DeadlinePassed,
    Event,
    Failover,
    Fence,
    GiveUp,
    HeartbeatMissed,
    NodeLost,
    PrepareAnew,
    Promote,
    Replanned,
    Replay,
    Restore,
    Start,
    StartStandby,
    StateBegan,
    StateEnded,
    StepDropped,
    StepsReplayed,
    TakeCheckpoint,
)
from actors.failures import NODE_GONE, dead_actor, how_it_went, is_death, root_cause
from actors.heartbeats import listen
from actors.journal import Journal, StateBound, StateChanged, first_unfinished
from actors.members import GONE_S, Held, Home, Member
from actors.rebuilding import SETTLE_S, NotRestored, Rebuilding
from actors.recovery import Recovery
from actors.relocation import Relocation
from actors.replaying import Replaying
from actors.starting import Starting
from hetero.errors import ChildDiedError, ClosedError, HeteroError, StateError, StepTimeoutError
from hetero.options import RuntimeOptions
from hetero.trace import Span

log = logging.getLogger("hetero.recovery")

_ANSWER_S = 0.5


class Mending:
    """Recovery of one executor's children. `lock` is held around everything that gives children work, and while they
    are being brought back; whoever waits for results does not hold it.
    """

    def __init__(self, held: Held, journal: Journal, options: RuntimeOptions) -> None:
        self.lock = threading.RLock()
        self.machine: Recovery | None = None
        self.relocation: Relocation | None = None
        self.closed = False
        self._calm = False
        """Whether it was quiet when last that was asked, and nothing has happened since; a child that has ended is in
        `Held.ended`."""
        self._held, self._journal, self._options = held, journal, options
        self._starting = Starting(held, options)
        self.checkpoints = Checkpoints(held, journal)
        self._todo: deque[Command] = deque()
        self._noticed: dict[str, float] = {}
        self._spans: list[Span] = []
        self._given_up: dict[int, GiveUp] = {}
        self._timed_out: set[int] = set()
        self.lost: dict[str, HeteroError] = {}
        """Children that are lost for good, and why nothing can be done without them."""
        self.plans = 0
        """How often children were given another plan."""
        self.looks = 0
        """How often processes of this machine were looked at."""
        self._last_cause: dict[str, str] = {}
        self._rebuilding = Rebuilding(journal)
        self._replaying = Replaying(held, journal, self._rebuilding)
        self._forgotten: str | None = None
        """Why the state cannot be made again."""

    def begin(self, spare: Mapping[str, list[Home]]) -> None:
        """All children are prepared. `spare`: bundles for standbys, by the kind of child that they can become."""
        held, options = self._held, self._options
        self._starting.begin(spare)
        kinds = {m.device: held.wishes[k].kind for k, m in held.members.items()}
        self.machine = Recovery(
            kinds, options.max_restarts, options.max_step_deaths, options.checkpoint_every
        )
        if options.heartbeat_timeout_s:
            listen(self, options.heartbeat_timeout_s, held.over)

    def members(self) -> list[Member]:
        return list(self._held.members.values())

    # -- steps ---------------------------------------------------------------------------------------------------
    def quiet(self) -> bool:
        """Whether there is recovery, which has nothing to do, and nothing that a step would have to hear of; that
        is remembered."""
        ended = self._held.ended
        if self._calm and not ended:
            return True
        ended.clear()  # first: who ends from now on is there again
        self._calm = not (
            self.closed
            or self.machine is None
            or self._todo
            or self._starting.coming
            or self.lost
            or self._forgotten is not None
            or self._given_up
            or not self._rebuilding.asked
            or self.checkpoints.due is not None
            or any(member.over for member in self._held.members.values())
        )
        if self.closed:  # which who closes says without the lock
            self._calm = False
        return self._calm

    def ready(self) -> None:
        """A step may be launched now: children that died idle are brought back first. Raises: ChildDiedError."""
        machine = self.machine
        if machine is None:
            return
        self.notice()
        if self.lost:
            self._raise_lost()
        self.check_state()
        if self.checkpoints.due is not None:
            for event in self.checkpoints.before_launch():
                machine.handle(event)

    def launched(self, step: int) -> None:
        """A step's calls will follow, which the children are ready for."""
        if self.machine is not None:
            self.machine.launched(step)

    def finished(self, step: int, epoch: int) -> bool:
        """Whether the results of `step` that came in `epoch` are the ones; if so, the step has ended."""
        machine = self.machine
        if machine is None:
            self._journal.finish(step)
            return True
        if not machine.delivers(step, epoch) or not (self._rebuilding.asked or self.led_here()):
            return False
        self._journal.finish(step)
        if self.checkpoints.due is not None:
            for event in self.checkpoints.settle():
                machine.handle(event)
        self._todo.extend(machine.finished(step))
        if self._todo or self._starting.coming:
            self.do()
        return True

    def dropped(self, step: int) -> None:
        self._journal.drop(step)
        self._given_up.pop(step, None)
        self._timed_out.discard(step)
        if self.machine is not None:
            self.do(StepDropped(step))

    @property
    def epoch(self) -> int:
        return 0 if self.machine is None else self.machine.epoch

    def check(self, step: int) -> None:
        """Raises: ChildDiedError, StepTimeoutError where the step was given up; ClosedError."""
        if self.closed:
            raise ClosedError("these children were closed", phase="transport")
        if self.lost:
            self._raise_lost()
        if step in self._journal.open:
            self.check_state()
        given_up = self._given_up.get(step)
        if given_up is None:
            return
        text = f"step {step} was given up: children ended {given_up.deaths} times with it, last: {given_up.cause}"
        error: HeteroError = StepTimeoutError(text) if step in self._timed_out else ChildDiedError(text)
        raise error.at(device=self._last_cause.get(given_up.cause), step=step)

    def _raise_lost(self) -> None:
        for device, why in self.lost.items():
            error = ChildDiedError(why.message, node=why.node, op=why.op, device=device)
            raise error from why.__cause__

    # -- what has happened ---------------------------------------------------------------------------------------
    def notice(self) -> None:
        """Bring back children that have ended meanwhile."""
        gone = {}
        for member in self._held.members.values():
            if not member.over or member.end is None:
                continue
            error = member.end.exception()
            if error is not None:
                gone[member] = how_it_went(root_cause(error))
        if gone or self._todo or self._starting.coming:
            self.do(*self._losses(gone))

    def died(self, error: BaseException) -> None:
        """A call has failed with the death of a child, or the loss of what it made."""
        if self._gone_with(error):
            return
        oldest = next(iter(self._journal.open), None)  # nobody is known to be gone: the step has another try
        if oldest is not None:
            self.do(DeadlinePassed(oldest, (), time.monotonic(), how_it_went(root_cause(error))))

    def _gone_with(self, error: BaseException) -> bool:
        """Bring back the children whose end this error tells of; whether there are any."""
        actor_id, members = dead_actor(error), self._held.members
        found = [m for m in members.values() if m.actor_id == actor_id or m.ended()]
        if actor_id is None and not found:
            # an object is gone; whose process or node it was is known in a moment
            deadline = time.monotonic() + SETTLE_S
            while not found and time.monotonic() < deadline and not self.closed:
                ray.wait([m.actor.ping.remote() for m in members.values()], timeout=0.1, fetch_local=False)
                found = [m for m in members.values() if m.ended()]
        cause = how_it_went(root_cause(error))
        self.do(*self._losses(dict.fromkeys(found, cause)))
        return bool(found)

    def led_here(self) -> bool:
        """Whether the state is that which the finished steps have led to, if it was made again. A child that could not
        restore it is replaced; where a step cannot be replayed, since what it was fed is lost, so is the state."""
        outcome = self._rebuilding.outcome()
        if isinstance(outcome, bool):
            return outcome
        error = outcome.error
        if is_death(error) and self._gone_with(error):
            return False
        cause = how_it_went(root_cause(error))
        if isinstance(outcome, NotRestored):
            self.do(*self._loss(outcome.member, f"its state was not restored: {cause}"))
        else:
            self._forgotten = f"step {outcome.step} cannot be replayed: {cause}"
        return False

    def check_state(self) -> None:
        """Raises: StateError where what the children keep is not what the steps have led to, and cannot be made."""
        if self._forgotten is not None:
            raise StateError(
                f"the state is lost ({self._forgotten}); reset_state or write_state begins it anew",
                phase="replay",
            )

    def passed_deadline(self, step: int) -> None:
        """A step took too long: whoever is running it, or a step before it, is stuck."""
        epoch = self.epoch
        self.muster()
        self.notice()
        if epoch != self.epoch:
            return  # a death explains it, and the step has been given out again
        record = self._journal.open.get(step)
        if record is not None and record.way is not None:
            suspects = [(m.device, m.generation) for m in self._stuck()]
        else:
            running = [(m, self._running(child)) for child, m in self._held.members.items()]
            suspects = [(m.device, m.generation) for m, at in running if at is not None and at <= step]
        self._timed_out.add(step)
        names = ", ".join(name for name, _ in suspects) or "no child"
        cause = f"{names} did not finish it within {self._options.step_timeout_s:g} s"
        if suspects:
            self._last_cause[cause] = suspects[0][0]
        self.do(DeadlinePassed(step, tuple(suspects), time.monotonic(), cause))

    def cut_off(self, device: str | None, cause: str) -> None:
        """The channels have broken at this child, as far as can be told: it is dead, or nobody can reach it."""
        self._held.roads.pause()
        for member in self.members():
            if member.device == device and member.end is not None and self._current(member):
                with suppress(Exception):
                    member.end.exception(timeout=GONE_S)
                if not member.ended():
                    self.do(*self._loss(member, cause))
                    return
        epoch = self.epoch
        self.notice()
        if epoch == self.epoch and self._journal.open:
            self._held.roads.cut(f"channels failed: {cause}")
            self.do(DeadlinePassed(next(iter(self._journal.open)), (), time.monotonic(), cause))

    def muster(self) -> None:
        """Count the standbys that are ready."""
        assert self.machine is not None, "only with recovery"
        for event in self._starting.muster():
            self.machine.handle(event)

    def heart_stopped(self, member: Member) -> None:
        """A child has not given a sign of life for too long."""
        if self._current(member) and not member.ended():
            self.muster()
            step = self._running(self._held.numbers[member.device])
            cause = f"it gave no sign of life for {self._options.heartbeat_timeout_s:g} s"
            self._last_cause[cause] = member.device
            self.do(HeartbeatMissed(member.device, member.generation, time.monotonic(), step, cause))

    def shut(self) -> None:
        """Nothing is begun any more, and what is being started ends; needs no lock."""
        self.closed = True
        self._calm = False

    def close(self) -> None:
        self.shut()
        if self.machine is not None:
            self.machine.handle(Closed())

    def _losses(self, gone: Mapping[Member, str]) -> list[Event]:
        """What these ends come to. Everything on a lost node is lost with it, at once: for a step that is one loss."""
        events: list[Event] = []
        for member, cause in gone.items():
            node = member.facts.get("node_id")
            if not cause.startswith(NODE_GONE) or node is None:
                events += self._loss(member, cause)
                continue
            there = [m for m in self.members() if m.facts.get("node_id") == node and self._current(m)]
            if not there or any(isinstance(e, NodeLost) and e.node == node for e in events):
                continue
            self.muster()
            steps = [self._running(self._held.numbers[m.device]) for m in there]
            step = min((s for s in steps if s is not None), default=None)
            self._last_cause[cause] = there[0].device
            lost = tuple((m.device, m.generation) for m in there)
            events.append(NodeLost(str(node), lost, time.monotonic(), step, cause))
        return events

    def _loss(self, member: Member, cause: str) -> list[Event]:
        if not self._current(member):
            return []
        self.muster()
        step = self._running(self._held.numbers[member.device])
        self._last_cause[cause] = member.device
        return [ActorLost(member.device, member.generation, time.monotonic(), step, cause)]

    def _current(self, member: Member) -> bool:
        machine = self.machine
        return (
            machine is not None
            and machine.state(member.device) in ("ready", "prepared")
            and machine.generation(member.device) == member.generation
        )

    def _running(self, child: int) -> int | None:
        """The step that a child is running, or ran when it died: that of its first call which has not ended, if what
        it needs is there."""
        found = first_unfinished(self._journal.records(), child, lambda call: _is_done(call.done))
        if found is None:
            return None
        record, call = found
        needs = [p.content for p in call.receives if isinstance(p.content, ray.ObjectRef)]
        return record.step if all(_is_done(ref) for ref in needs) else None

    def _stuck(self) -> list[Member]:
        """Children that have been at one partition for half a step's deadline, or do not answer."""
        members = self.members()
        asked = {m.actor.ping.remote(): m for m in members}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S, fetch_local=False)
        stuck = []
        for ref, member in asked.items():
            try:
                for_s = ray.get(ref) if ref in ready else self._options.step_timeout_s
            except rex.RayError:
                continue  # its end is noticed by itself
            if for_s >= 0.5 * self._options.step_timeout_s:
                stuck.append(member)
        return stuck

    # -- what to do ----------------------------------------------------------------------------------------------
    def do(self, *events: Event) -> None:
        """Tell the machine, and do what it says until it has nothing more to say.

        Raises: ClosedError where the executor is closed meanwhile.
        """
        assert self.machine is not None, "only with recovery"
        if self.closed:
            self._todo.clear()
            self._starting.forget()
            return
        self._calm = False
        for event in events:
            self._todo.extend(self.machine.handle(event))
        while self._todo or self._starting.coming:
            while self._todo:
                # What is interrupted stays there, and is done when next there is something to do.
                following = self._perform(self._todo[0])
                self._todo.popleft()
                self._todo.extend(following)
            if self._starting.coming:
                event_ = self._starting.wait_next()
                if self.closed:
                    raise ClosedError("these children were closed meanwhile", phase="transport")
                if event_ is not None:
                    self._todo.extend(self.machine.handle(event_))

    def _perform(self, command: Command) -> Sequence[Command]:
        assert self.machine is not None, "only with recovery"
        match command:
            case Fence(device, generation):
                self._fence(device, generation)
            case Start(device, generation, at_s):
                self._starting.ask(device, generation, at_s)
            case Promote(device, generation, kind):
                self._starting.promote(device, generation, kind)
            case StartStandby(kind):
                self._starting.start_standby(kind)
            case Restore():
                self._replaying.restore()
            case Replay(epoch, _, open_steps):
                self._replay(open_steps)
                return self.machine.handle(StepsReplayed(epoch))
            case GiveUp(step):
                log.warning("step %d is given up after %d deaths: %s", step, command.deaths, command.cause)
                self._given_up[step] = command
                self._journal.drop(step)
            case PrepareAnew(device, generation):
                self._starting.prepare_anew(device, generation)
            case Failover(device, cause):
                return self._go_without(device, cause)
            case TakeCheckpoint(step):
                self.checkpoints.take(step, self._journal.bound)
        return ()

    def _go_without(self, device: str, cause: str) -> Sequence[Command]:
        assert self.machine is not None, "only with recovery"
        text = f"child {device} died, and cannot be started again: {cause}"
        try:
            if self.relocation is None:
                raise ChildDiedError(text)
            children = self.relocation.without(self._held.numbers[device], cause)
        except HeteroError as why:
            log.error("%s; %s", text, why)
            error = ChildDiedError(
                text if why.message == text else f"{text}; {why.message}", node=why.node, op=why.op
            )
            error.__cause__ = why
            self.lost[device] = error
            self._starting.forget()
            return ()
        self.plans += 1
        self.lost.clear()
        todo = self.machine.handle(Replanned(children, time.monotonic()))
        here = {self._held.numbers[name] for name, _ in children}
        for child in [k for k in self._held.members if k not in here]:
            self._held.members.pop(child).kill()
        return todo

    def take_spans(self) -> list[Span]:
        """The losses since the last call: from when each was noticed until its steps were given out again."""
        with self.lock:
            spans, self._spans = self._spans, []
        return spans

    def _fence(self, device: str, generation: int) -> None:
        self._noticed.setdefault(device, time.perf_counter())
        member = self._held.member(device)
        self._starting.forget(device)
        self.checkpoints.forget()
        if member is not None:
            log.warning("child %s (generation %d) is gone", device, generation)
            member.kill()

    def _replay(self, open_steps: Sequence[int]) -> None:
        steps = self._replaying.replay(open_steps)
        noticed, self._noticed = self._noticed, {}
        if self._options.trace:
            now, replayed = time.perf_counter(), {"replayed_steps": steps}
            first = min(open_steps, default=0)
            self._spans += [
                Span(f"{device} replaced", "recovery", first, start, now, "recovery", replayed)
                for device, start in noticed.items()
            ]

    # -- state ---------------------------------------------------------------------------------------------------
    def bound(self, bound: StateBound) -> None:
        """A child was told to keep state."""
        if self.machine is not None:
            self._moot(self._journal.bind(bound))

    def changed(self, changed: StateChanged) -> None:
        """The states of a child were changed."""
        if self.machine is not None:
            self._moot(self._journal.change(changed.child, changed.change))

    def _moot(self, moot: bool) -> None:
        if moot:
            self._forgotten = None
            self.checkpoints.forget()
            self.do(StateBegan() if self._journal.bound else StateEnded())

    # -- looking -------------------------------------------------------------------------------------------------
    def statistics(self) -> dict[str, Any]:
        """What recovery has done, and which children it could not bring back."""
        if self.machine is None:
            return {}
        return {
            **asdict(self.machine.counts),
            "lost": {name: why.message for name, why in self.lost.items()},
            "journal": len(self._journal),
        }


def _is_done(ref: Any) -> bool:
    """Whether a call has ended by itself, well or with an error of its own."""
    ready, _ = ray.wait([ref], timeout=0, fetch_local=False)
    if not ready:
        return False
    try:
        ray.get(ref, timeout=SETTLE_S)
    except rex.RayError as error:
        return isinstance(error, rex.RayTaskError) and not is_death(error)
    return True
