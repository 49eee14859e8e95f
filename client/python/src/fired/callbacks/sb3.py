"""Stable-Baselines3: `model.learn(…, callback=FiredCallback(client, trigger=Schedule(every=…)))`.

Acts between two rollouts, so that what was gathered belongs to one policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback

from .. import errors
from ._loop import Loop, Part
from ._triggers import Trigger

if TYPE_CHECKING:
    from .._client import Client


def parts_of(algorithm: Any) -> list[Part]:
    """The networks of an algorithm, each with its optimizer, target copy and heads left alone."""
    policy = algorithm.policy
    if hasattr(policy, "q_net"):  # DQN
        return [Part(policy.q_net, policy.optimizer, [policy.q_net_target])]
    if hasattr(policy, "critic") and hasattr(policy, "actor"):  # SAC, TD3, DDPG
        actor, critic = policy.actor, policy.critic
        target = getattr(policy, "actor_target", None)
        heads = {"exclude": ["mu.weight", "log_std.weight"]} if hasattr(actor, "log_std") else {}
        parts = [Part(actor, actor.optimizer, None if target is None else [target], heads)]
        targets = getattr(policy, "critic_target", None)
        for index, network in enumerate(critic.q_networks):
            mirror = None if targets is None else [targets.q_networks[index]]
            parts.append(Part(network, critic.optimizer, mirror))
        return parts
    if hasattr(policy, "action_net") and hasattr(policy, "optimizer"):  # PPO, A2C
        heads = {"exclude": ["action_net.*", "value_net.*"]}
        return [Part(policy, policy.optimizer, None, heads)]
    raise errors.ParameterError(
        f"{type(algorithm).__name__} has no policy that is known here; use fired.callbacks.Loop"
    )


class FiredCallback(BaseCallback):
    """Reinitialises the networks of an algorithm. The metric of Plateau(mode="max") is the mean
    return of the last episodes. Other arguments go to `client.reinit`; `.loop.history` has what was
    done."""

    def __init__(
        self,
        client: Client,
        *,
        trigger: Trigger | Sequence[Trigger],
        watch: bool = False,
        run: str | None = None,
        verbose: int = 0,
        **arguments: Any,
    ) -> None:
        super().__init__(verbose)
        self.loop = Loop(client, trigger=trigger, watch=watch, run=run, **arguments)
        self._reason: str | None = None

    def _on_training_start(self) -> None:
        self.loop.set_parts(parts_of(self.model))

    def _metric(self) -> float | None:
        episodes = self.model.ep_info_buffer
        if not episodes:
            return None
        return float(sum(episode["r"] for episode in episodes) / len(episodes))

    def _on_step(self) -> bool:
        reason = self.loop.due(self.num_timesteps, self._metric())
        self._reason = self._reason or reason
        return True

    def _on_rollout_start(self) -> None:
        if self._reason is None:
            return
        reason, self._reason = self._reason, None
        self.loop.act(self.num_timesteps, reason)
        if self.verbose:
            print(f"fired: reinitialised at {self.num_timesteps} steps: {reason}")

    def _on_training_end(self) -> None:
        self.loop.close()
