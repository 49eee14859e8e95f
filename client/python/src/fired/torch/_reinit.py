"""Reinitialising a model in place, and measuring it.

All is decided and checked first, then computed into memory of its own, then put in place: a failure
on the way leaves model and optimizer as they were. `atomic=False` does so one window after another,
for models that do not fit twice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from .. import errors
from .._flat import FlatSet, Item, Options
from .._result import Report, TensorResult
from ._model import check_whole, dtype_name, parameters, to_host, unwrap
from ._selection import Choice, Selection, select
from ._state import (
    POLICIES,
    Commit,
    Ownership,
    StateChange,
    moved_states,
    optimizers_of,
    plan_state,
)
from ._team import Team, is_sharded, owners_of, team_of, whole_of
from ._watch import Watch

if TYPE_CHECKING:
    from .._client import Client

WINDOW_BYTES_MIN = 4 << 20


@dataclass
class Work:
    """One parameter on its way: who computes it, its new values, what changes with it."""

    choice: Choice
    owner: int
    mirrors: list[torch.Tensor]
    change: StateChange = field(default_factory=StateChange)
    new: torch.Tensor | None = None  # the whole matrix, at its owner
    part: torch.Tensor | None = None  # what this process puts in place
    commits: list[Commit] = field(default_factory=list)
    in_place: bool = False  # the library wrote to the parameter itself

    @property
    def bytes(self) -> int:
        return self.choice.tensor.numel() * self.choice.tensor.element_size()


@dataclass
class Outcome:
    """How one process's share of a window went."""

    results: list[TensorResult] = field(default_factory=list)
    error: BaseException | None = None
    skipped: str = ""
    place: str = "daemon"


def _preset_state(preset: str, options: Options | None) -> tuple[str, str]:
    """The policy and scope of optimizer state that a preset and the options ask for."""
    given = {key: str(value) for key, value in (options or {}).items() if ":" not in key}
    with FlatSet([Item("", "F32", (1, 1), preset=preset, options=given)]) as flat:
        return flat.option(0, "state_policy"), flat.option(0, "state_scope")


def _mirror_tensors(mirrors: Any, choice: Choice) -> list[torch.Tensor]:
    """The tensors of the same name in the mirrors."""
    if mirrors is None:
        return []
    models = mirrors if isinstance(mirrors, (list, tuple)) else [mirrors]
    found = []
    for model in models:
        named = (
            dict(model)
            if isinstance(model, Mapping)
            else {name: p.tensor for p in parameters(model) for name in p.names}
        )
        names = [name for name in (choice.name, *choice.aliases) if name in named]
        # EMA wrappers (torch.optim.swa_utils.AveragedModel) keep the model under `module`.
        names += [f"module.{n}" for n in (choice.name, *choice.aliases) if f"module.{n}" in named]
        if not names:
            raise errors.ParameterError(
                f"a mirror has no parameter {choice.name}; mirrors are copies of the model with "
                "the same names",
                parameter=choice.name,
            )
        tensor = named[names[0]]
        if tensor.shape != choice.tensor.shape:
            raise errors.ParameterError(
                f"{choice.name} is {tuple(choice.tensor.shape)}, but {tuple(tensor.shape)} in a "
                "mirror",
                parameter=choice.name,
            )
        found.append(tensor)
    return found


def _initial(init: Any, choice: Choice) -> torch.Tensor:
    """The stored initial weights of a parameter that a preset resets."""
    if init is None:
        raise errors.ParameterError(
            f"the preset resets {choice.name} to its initial weights; give them with init= (a "
            "module or a state_dict kept from the start of training)",
            parameter=choice.name,
        )
    named = init if isinstance(init, Mapping) else unwrap(init).state_dict()
    for name in (choice.name, *choice.aliases):
        if name in named:
            tensor: torch.Tensor = named[name]
            if tensor.shape != choice.tensor.shape:
                break
            return tensor
    raise errors.ParameterError(
        f"init has no {choice.name} of shape {tuple(choice.tensor.shape)}", parameter=choice.name
    )


class Reinit:
    """One call of reinit()."""

    def __init__(
        self,
        client: Client,
        selection: Selection,
        team: Team,
        *,
        init: Any,
        statistics: str,
        call: dict[str, Any],
        atomic: bool,
    ) -> None:
        self.client, self.selection, self.team = client, selection, team
        self.init, self.statistics, self.call, self.atomic = init, statistics, call, atomic
        self.works: list[Work] = []
        self.extra: list[Commit] = []  # state of parameters that are not touched
        self.by_name: dict[str, Work] = {}

    # --- before anything is computed ---

    def plan(self, optimizer: Any, policy: str, scope: str, mirrors: Any) -> None:
        """Decides and checks everything that can be known beforehand."""
        touched = self.selection.touched
        owners = owners_of([choice.tensor for choice in touched], self.team.size)
        for choice, owner in zip(touched, owners, strict=True):
            check_whole(choice.name, choice.tensor)
            if choice.action == "reset":
                _initial(self.init, choice)
            self.works.append(Work(choice, owner, _mirror_tensors(mirrors, choice)))
        self.by_name = {
            name: work for work in self.works for name in (work.choice.name, *work.choice.aliases)
        }
        optimizers = optimizers_of(optimizer)
        if optimizers:
            self._plan_state(Ownership(optimizers), policy, scope)

    def _plan_state(self, owned: Ownership, policy: str, scope: str) -> None:
        for work in self.works:
            choice = work.choice
            if not choice.tensor.requires_grad:
                continue  # frozen, or a target network's: no optimizer has it
            own = policy
            if policy == "transport" and choice.action != "project":
                own = "reset"  # there is no tangent space at weights that were not projected
            if policy == "transport" and is_sharded(choice.tensor):
                raise errors.OptimizerError(
                    f"state='transport' needs whole matrices, {choice.name} is a DTensor; use "
                    "state='reset'",
                    parameter=choice.name,
                )
            owner = owned.of(choice.name, choice.tensor)
            work.change = plan_state(choice.name, choice.tensor, owner, own)
        if scope != "all" or policy in ("keep", "transport"):
            return
        touched = {id(work.choice.tensor) for work in self.works}
        for tensor in owned.tensors():
            if id(tensor) not in touched:
                owner = owned.of("another parameter", tensor)
                self.extra += plan_state("another parameter", tensor, owner, policy).commits

    def windows(self) -> list[list[Work]]:
        """All at once, or groups no larger than the largest parameter."""
        if self.atomic or not self.works:
            return [self.works]
        limit = max(WINDOW_BYTES_MIN, *(work.bytes for work in self.works))
        groups: list[list[Work]] = [[]]
        size = 0
        # What is tied comes with its source.
        for work in sorted(self.works, key=lambda w: w.choice.action == "tied"):
            if groups[-1] and size + work.bytes > limit:
                groups.append([])
                size = 0
            groups[-1].append(work)
            size += work.bytes
        return groups

    # --- computing ---

    def _item(self, work: Work, whole: torch.Tensor) -> Item:
        choice = work.choice
        source = to_host(whole)
        own_memory = (
            source.data_ptr() != choice.tensor.data_ptr() if not is_sharded(choice.tensor) else True
        )
        if own_memory:
            work.new = source  # a copy already: written over
        elif self.atomic or not self.team.alone:
            work.new = torch.empty_like(source)
        else:
            work.new, work.in_place = source, True
        states, commits, keep = moved_states(choice.name, work.change)
        work.commits += commits
        options = dict(choice.options)
        if work.change.moved:
            options["state_policy"] = "transport"
        return Item(
            name=choice.name,
            dtype=dtype_name(source.dtype),
            shape=tuple(source.shape),
            data=source.data_ptr(),
            out=work.new.data_ptr(),
            preset=self.selection.preset,
            options=options,
            states=states,
            keep=(source, work.new, *keep),
        )

    def _compute(self, window: Sequence[Work]) -> Outcome:
        """This process's share of a window, into memory of its own."""
        items = []
        for work in window:
            if work.choice.action != "project":
                continue
            whole = self.team.whole(work.choice.tensor, work.owner)
            if whole is not None:
                items.append(self._item(work, whole))
            del whole
        report = self.client.compute(items, statistics=self.statistics, **self.call)
        if report.skipped:
            return Outcome(skipped=report.reason)
        return Outcome(list(report), place=report.place)

    def compute(self, window: Sequence[Work]) -> Outcome:
        """Everybody's share; when one fails, all do."""
        try:
            outcome = self._compute(window)
        except Exception as error:
            if self.team.alone:
                raise
            outcome = Outcome(error=error)
        return self.agree(outcome)

    def agree(self, outcome: Outcome) -> Outcome:
        """The outcome of all."""
        outcomes = self.team.exchange(outcome)
        if outcome.error is not None:
            raise outcome.error
        for rank, other in enumerate(outcomes):
            if other.error is not None:
                raise type(other.error)(f"rank {rank}: {other.error}") from other.error
        skipped = next((o.skipped for o in outcomes if o.skipped), "")
        if skipped:
            return Outcome(skipped=skipped)
        place = "local" if any(o.place == "local" for o in outcomes) else "daemon"
        return Outcome([result for o in outcomes for result in o.results], place=place)

    # --- putting it in place ---

    def receive(self, window: Sequence[Work], done: Mapping[str, TensorResult]) -> None:
        """New values for what this process holds; nothing of the model is changed yet."""
        for work in window:
            choice = work.choice
            if choice.action == "project":
                if done[choice.name].action != "projected":
                    work.new = None
                    continue
                tensor = choice.tensor
                device = tensor.device
                work.part = self.team.part(work.new, tensor, work.owner, device)
                if not self.team.alone:
                    work.new = None
            elif choice.action == "reset":
                work.part = self._reset_part(choice)
        for work in window:
            if work.choice.action == "tied":
                work.part = self.by_name[work.choice.source].part

    def _reset_part(self, choice: Choice) -> torch.Tensor:
        initial = _initial(self.init, choice).detach()
        if is_sharded(choice.tensor) and is_sharded(initial):
            local: torch.Tensor = initial.to_local()  # type: ignore[attr-defined]
            return local
        if is_sharded(choice.tensor):
            raise errors.ShardError(
                f"{choice.name} is a DTensor, its initial weights are not", parameter=choice.name
            )
        return initial

    def commit(self, window: Sequence[Work]) -> None:
        """Copies and in-place fills only: nothing here can be refused."""
        with torch.no_grad():
            for work in window:
                if work.part is None:
                    continue
                if not work.in_place:
                    _assign(work.choice.tensor, work.part)
                for mirror in work.mirrors:
                    _assign(mirror, work.part)
                for commit in (*work.change.commits, *work.commits):
                    commit()
                if self.atomic is False:
                    work.part = work.new = None

    def run(self) -> Report:
        start = time.monotonic()
        results: list[TensorResult] = []
        place, reason = "daemon", ""
        for window in self.windows():
            outcome = self.compute(window)
            if outcome.skipped:
                place, reason = "nowhere", outcome.skipped
                break
            place = outcome.place
            done = {result.name: result for result in outcome.results}
            self.receive(window, done)
            self.commit(window)
            results += [_with_state(work, done) for work in window]
        if place == "nowhere" and not results:
            return Report((), place, reason, time.monotonic() - start)
        for commit in self.extra:
            commit()
        known = {result.name: result for result in results}
        order = [known.get(c.name) or _skipped(c) for c in self.selection.choices]
        return Report(tuple(order), place, reason, time.monotonic() - start)


def _assign(target: torch.Tensor, source: torch.Tensor) -> None:
    """In place; a DTensor's local part when `source` is one."""
    if is_sharded(target):
        target = target.to_local()  # type: ignore[attr-defined]
    target.detach().copy_(source)


def _skipped(choice: Choice) -> TensorResult:
    return TensorResult(
        choice.name,
        tuple(choice.tensor.shape),
        dtype_name(choice.tensor.dtype),
        "skipped",
        choice.reason,
    )


def _with_state(work: Work, done: Mapping[str, TensorResult]) -> TensorResult:
    """The result of a touched parameter, with what was done to its state."""
    choice = work.choice
    result = done.get(choice.name)
    if result is None:
        action = choice.action
        result = replace(_skipped(choice), action=action, reason=choice.note)
    if work.part is None and result.action == "projected" and work.change.action == "keep":
        return result
    touched = result.action in ("projected", "reset", "tied")
    return replace(result, state=work.change.action if touched else "keep")


def reinit(
    client: Client,
    model: Any,
    *,
    optimizer: Any = None,
    preset: str | None = None,
    state: str | None = None,
    step: int | None = None,
    run: str | None = None,
    atomic: bool = True,
    mirrors: Any = None,
    arch: str = "auto",
    only: str = "all",
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    options: Options | None = None,
    init: Any = None,
    frozen: bool = False,
    statistics: str = "basic",
    deadline: float | None = None,
    group: Any = None,
) -> Report:
    """Projects a model's weights in place and resets exactly the optimizer state that goes with
    them. `client.reinit(model, …)` is the same.

    `model` is a module (also compiled or under DistributedDataParallel, FSDP2 or tensor
    parallelism), a Selection of `fired.torch.select`, or a dictionary of named tensors that are all
    meant. `optimizer` is the one that trains it, or a list; `state` what happens to its state:
    "reset", "zero", "keep", "transport" or "drop" (default: the preset's own, reset). `mirrors` are
    target or EMA copies, which get the new weights too. `init` are initial weights (a module or a
    state_dict) for presets that reset. `run` and `step` name the call in the daemon's history.

    Model, optimizer and mirrors are unchanged unless everything has succeeded; with `atomic=False`
    that holds for one window of parameters after another, in less memory.

    >>> import torch, fired
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> optimizer = torch.optim.Adam(net.parameters())
    >>> report = fired.Client("local").reinit(net, optimizer=optimizer)
    >>> report.projected, report["0.weight"].state
    (['0.weight'], 'reset')
    """
    selection = model
    if not isinstance(model, Selection):
        selection = select(
            model,
            include,
            exclude,
            arch,
            preset=preset or "fire",
            only=only,
            options=options,
            frozen=frozen,
            verbose=False,
        )
    elif include or exclude or options or (preset and preset != model.preset):
        raise errors.ParameterError(
            "a Selection has its preset, patterns and options already; give them to select()"
        )
    policy, scope = _preset_state(selection.preset, selection.user_options)
    if state is not None and state not in POLICIES:
        raise errors.ParameterError(f"state must be one of {', '.join(POLICIES)}, got {state!r}")
    if state is not None and optimizer is None:
        raise errors.OptimizerError(f"state={state!r} needs the optimizer: give optimizer=")
    tensors = [choice.tensor for choice in selection.choices]
    team = team_of(selection.model, tensors, group)
    call = {"run": run, "step": step, "deadline": deadline}
    work = Reinit(
        client, selection, team, init=init, statistics=statistics, call=call, atomic=atomic
    )
    if team.alone:
        work.plan(optimizer, state or policy, scope, mirrors)
        return work.run()
    failed: BaseException | None = None
    try:
        work.plan(optimizer, state or policy, scope, mirrors)
    except Exception as error:
        failed = error
    work.agree(Outcome(error=failed))
    return work.run()


def analyze(
    client: Client,
    model: Any,
    *,
    activations: Watch | Mapping[str, Iterable[float]] | None = None,
    gradients: bool | Mapping[str, torch.Tensor] = False,
    preset: str | None = None,
    arch: str = "auto",
    only: str = "all",
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    options: Options | None = None,
    frozen: bool = True,
    statistics: str = "basic",
    step: int | None = None,
    run: str | None = None,
    deadline: float | None = None,
) -> Report:
    """Statistics of what `reinit` would project; nothing is changed. `arch="none"` measures every
    2-D and 4-D parameter. `activations` is a Watch, or mean |activation| of each output unit by
    parameter; it gives `dormant_ratio`. `gradients=True` takes the parameters' `.grad`, or give
    tensors by name; they give `gradient_dormant_ratio`. `statistics="spectrum"` adds effective
    rank, srank and condition, which are dear for large matrices.

    >>> import torch, fired
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> report = fired.Client("local").analyze(net, arch="none")
    >>> sorted(result.name for result in report if result.action == "analyzed")
    ['0.weight', '2.weight']
    """
    selection = model
    if not isinstance(model, Selection):
        selection = select(
            model,
            include,
            exclude,
            arch,
            preset=preset or "fire",
            only=only,
            options=options,
            frozen=frozen,
            verbose=False,
        )
    means: Mapping[str, Iterable[float]] = {}
    if isinstance(activations, Watch):
        means = activations.means()
    elif activations is not None:
        means = activations
    items = []
    for choice in selection.choices:
        if choice.action != "project":
            continue
        check_whole(choice.name, choice.tensor)
        tensor = choice.tensor
        if is_sharded(tensor):
            tensor = whole_of(tensor)
        source = to_host(tensor)
        item = Item(
            name=choice.name,
            dtype=dtype_name(source.dtype),
            shape=tuple(source.shape),
            data=source.data_ptr(),
            preset=selection.preset,
            options=choice.options,
            keep=(source,),
        )
        for name in (choice.name, *choice.aliases):
            if name in means and item.unit_means is None:
                item.unit_means = [float(mean) for mean in means[name]]
        _attach_gradient(item, choice, gradients)
        items.append(item)
    report = client.compute(
        items, analyze=True, statistics=statistics, run=run, step=step, deadline=deadline
    )
    if report.skipped:
        return report
    known = {result.name: result for result in report}
    order = tuple(known.get(c.name) or _skipped(c) for c in selection.choices)
    return replace(report, tensors=order)


def _attach_gradient(
    item: Item, choice: Choice, gradients: bool | Mapping[str, torch.Tensor]
) -> None:
    gradient = None
    if gradients is True:
        gradient = choice.tensor.grad
    elif gradients:
        gradient = gradients.get(choice.name)
    if gradient is None:
        return
    if is_sharded(gradient):
        gradient = whole_of(gradient)
    if tuple(gradient.shape) != item.shape:
        raise errors.ParameterError(
            f"the gradient of {choice.name} has shape {tuple(gradient.shape)}, not {item.shape}",
            parameter=choice.name,
        )
    host = to_host(gradient)
    item.gradient = (dtype_name(host.dtype), host.data_ptr())
    item.keep = (*item.keep, host)
