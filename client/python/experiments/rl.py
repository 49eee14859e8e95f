"""DQN on MinAtar: one intervention in mid-training, return and dormant units before and after."""
from __future__ import annotations

import copy
import functools
import sys
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as functional
from minatar import Environment  # type: ignore[import-untyped]
from torch import Tensor, nn

from . import diagnostics, images, methods
from .harness import Experiment, main
from .models import QNetwork, seeded

GAME, STEPS = "breakout", {"full": 8_000, "quick": 4_000, "tiny": 200}
BUFFER, BATCH, RATE, GAMMA = 30_000, 32, 5e-4, 0.99
LEARN_FROM, TRAIN_EVERY, TARGET_EVERY = 100, 2, 1_000
EPSILON_END, EPSILON_STEPS = 0.1, 3_000
CHANNELS, ACTIONS = 4, 6


def make_model(seed: int) -> nn.Module:
    seeded(seed)
    return QNetwork(CHANNELS, ACTIONS)


class Replay:
    """The last BUFFER transitions; frames are bits."""

    def __init__(self, size: int) -> None:
        shape = (size, CHANNELS, 10, 10)
        self.states, self.nexts = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self.actions = np.zeros(size, np.int64)
        self.rewards, self.ends = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.count, self.size = 0, size

    def add(self, state: Frame, action: int, reward: float, after: Frame, end: bool) -> None:
        place = self.count % self.size
        self.states[place], self.nexts[place] = state, after
        self.actions[place], self.rewards[place], self.ends[place] = action, reward, end
        self.count += 1

    def sample(self, generator: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        chosen = generator.integers(0, min(self.count, self.size), count)
        return (torch.from_numpy(self.states[chosen]).float(),
                torch.from_numpy(self.actions[chosen]), torch.from_numpy(self.rewards[chosen]),
                torch.from_numpy(self.nexts[chosen]).float(), torch.from_numpy(self.ends[chosen]))


Frame = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass
class Agent:
    """All there is of a run: a copy goes on exactly as the original would."""

    seed: int
    size: int = BUFFER
    step: int = 0
    episode_return: float = 0.0
    returns: list[tuple[int, float]] = field(default_factory=list)  # (step at its end, return)

    def __post_init__(self) -> None:
        self.model = make_model(self.seed)
        self.optimizer: torch.optim.Optimizer = images.adam(RATE)(self.model)
        self.target = copy.deepcopy(self.model)
        self.environment = Environment(GAME, sticky_action_prob=0.1)
        self.environment.seed(self.seed)
        self.environment.reset()
        self.replay = Replay(self.size)
        self.generator = np.random.default_rng(self.seed)

    def frame(self) -> Frame:
        frame: Frame = np.ascontiguousarray(self.environment.state().transpose(2, 0, 1))
        return frame

    @torch.no_grad()
    def choose(self, state: Frame) -> int:
        explore = max(EPSILON_END, 1 - (1 - EPSILON_END) * self.step / EPSILON_STEPS)
        if self.generator.random() < explore:
            return int(self.generator.integers(ACTIONS))
        return int(self.model(torch.from_numpy(state).float()[None]).argmax())

    def learn(self) -> None:
        states, actions, rewards, nexts, ends = self.replay.sample(self.generator, BATCH)
        with torch.no_grad():
            goal = rewards + GAMMA * (1 - ends) * self.target(nexts).max(1).values
        value = self.model(states).gather(1, actions[:, None])[:, 0]
        self.optimizer.zero_grad()
        functional.smooth_l1_loss(value, goal).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def play(self, steps: int) -> None:
        for _ in range(steps):
            state = self.frame()
            action = self.choose(state)
            reward, end = self.environment.act(action)
            self.replay.add(state, action, float(reward), self.frame(), bool(end))
            self.episode_return += float(reward)
            self.step += 1
            if end:
                self.returns.append((self.step, self.episode_return))
                self.episode_return = 0.0
                self.environment.reset()
            if self.step >= LEARN_FROM and self.step % TRAIN_EVERY == 0:
                self.learn()
            if self.step % TARGET_EVERY == 0:
                self.target.load_state_dict(self.model.state_dict())

    def mean_return(self, start: int, end: int) -> float:
        found = [value for step, value in self.returns if start < step <= end]
        return sum(found) / len(found) if found else 0.0


@functools.lru_cache(maxsize=1)
def first_half(seed: int, steps: int) -> Agent:
    agent = Agent(seed)
    agent.play(steps // 2)
    return agent


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    steps = STEPS[size]
    agent = copy.deepcopy(first_half(seed, steps))
    run = methods.Run(make_model, images.adam(RATE), seed, official="official-dqn")
    probe = agent.replay.sample(np.random.default_rng(1), 512)[0]
    found = {"return_before": agent.mean_return(steps * 2 // 5, steps // 2)}
    found |= diagnostics.of_model(agent.model, probe, agent.step)
    agent.model, agent.optimizer = methods.apply(method, agent.model, agent.optimizer, run)
    if method != "warm":
        agent.target.load_state_dict(agent.model.state_dict())
    for part in range(5):
        begin = agent.step
        agent.play(steps // 10)
        found[f"return/{agent.step}"] = agent.mean_return(begin, agent.step)
        found |= diagnostics.of_model(agent.model, probe, agent.step)
        if part == 0:
            found["return_just_after"] = found[f"return/{agent.step}"]
    found["return_at_end"] = agent.mean_return(steps * 4 // 5, steps)
    return found


EXPERIMENT = Experiment(
    name="rl",
    about="DQN on MinAtar Breakout, Adam 5e-4, 8,000 frames, a training step every second; one "
    "intervention at half time, then the target network is copied. return_at_end: mean return of "
    "the last fifth; return_just_after: of the tenth after the intervention.",
    methods=["warm", "warm-reset", "reset", "shrink-perturb", "fired-official", "fired",
             "fired-scale-one"],
    metrics=["return_at_end", "return_just_after"],
    curves=["return", "dfi", "dormant_ratio"],
    curve_axis="frame",
    run_one=run_one,
    seeds=3)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
