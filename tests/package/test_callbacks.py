"""Callbacks in the real libraries, and the rules that set them off."""
import time

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import fired
from conftest import WAIT_S
from fired.callbacks import (Advice, DormantRatio, Loop, Plateau, Schedule, Situation,
                             TaskBoundary, any_of)


def isometry(weight):
    weight = weight.detach().double()
    weight = weight if weight.shape[0] >= weight.shape[1] else weight.T
    gram = weight.T @ weight
    return (gram / gram[0, 0] - torch.eye(len(gram))).abs().max().item() < 1e-4


# --- Stable-Baselines3 ----------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["DQN", "PPO", "A2C", "SAC", "TD3"])
def test_stable_baselines3(client, kind):
    import stable_baselines3
    from fired.callbacks.sb3 import FiredCallback, parts_of
    torch.manual_seed(0)
    environment = "Pendulum-v1" if kind in ("SAC", "TD3") else "CartPole-v1"
    more = {"learning_starts": 32, "batch_size": 16} if kind in ("DQN", "SAC", "TD3") else {}
    if kind in ("PPO", "A2C"):
        more["n_steps"] = 32
    algorithm = getattr(stable_baselines3, kind)(
        "MlpPolicy", environment, policy_kwargs={"net_arch": [16, 16]}, seed=0, device="cpu",
        **more)
    seen = []

    def look(step, reason, reports):
        for part in parts_of(algorithm):
            for name, weight in part.model.named_parameters():
                if any(name in report.projected for report in reports) and weight.ndim == 2:
                    seen.append((name, isometry(weight)))

    callback = FiredCallback(client, trigger=Schedule(at=[48]), on_reinit=look)
    algorithm.learn(160, callback=callback)
    assert len(callback.loop.history) == 1
    step, reason, reports = callback.loop.history[0]
    assert step >= 48 and reason == "at step 48"
    assert all(report.projected for report in reports)
    assert seen and all(good for _, good in seen)
    for report in reports:
        for head in ("action_net.weight", "value_net.weight", "mu.weight", "log_std.weight"):
            assert head not in report.projected
        assert all(result.state == "reset" for result in report if result.action == "projected")


def test_sb3_targets_are_mirrors(client):
    import stable_baselines3
    from fired.callbacks.sb3 import parts_of
    algorithm = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", device="cpu",
                                      policy_kwargs={"net_arch": [16, 16]})
    loop = Loop(client, trigger=Schedule(every=1))
    loop.set_parts(parts_of(algorithm))
    loop.act(1, "now")
    online, target = algorithm.policy.q_net, algorithm.policy.q_net_target
    assert torch.equal(online.q_net[2].weight, target.q_net[2].weight)


# --- Gymnasium ------------------------------------------------------------------------------------

def test_a_loop_of_gymnasium(client):
    torch.manual_seed(0)
    environment = gymnasium.make("CartPole-v1")
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    loop = Loop(client, policy, optimizer, trigger=Schedule(every=40), watch=True)
    done_at = []
    observation, _ = environment.reset(seed=0)
    for step in range(1, 121):
        logits = policy(torch.as_tensor(np.asarray(observation, np.float32)))
        action = int(logits.argmax())
        observation, reward, ended, cut, _ = environment.step(action)
        (-torch.log_softmax(logits, 0)[action] * float(reward)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if loop.step(step, metric=float(reward)):
            done_at.append(step)
            assert isometry(policy[0].weight)
        if ended or cut:
            observation, _ = environment.reset()
    assert done_at == [40, 80, 120]
    assert loop.history[0][2][0].projected == ["0.weight"]


# --- Hugging Face ---------------------------------------------------------------------------------

def test_transformers_trainer(client, tmp_path):
    from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments)
    from fired.callbacks.transformers import FiredCallback
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32,
                                       n_positions=8))
    data = [{"input_ids": torch.randint(32, (8,)), "labels": torch.randint(32, (8,))}
            for _ in range(24)]
    seen = []
    callback = FiredCallback(
        client, trigger=Schedule(at=[4]),
        on_reinit=lambda step, reason, reports: seen.append(
            isometry(model.transformer.h[0].mlp.c_fc.weight)))
    trainer = Trainer(model=model, train_dataset=data, callbacks=[callback], args=TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True, logging_steps=1))
    trainer.train()
    assert seen == [True]
    step, _, reports = callback.loop.history[0]
    assert step == 4
    assert reports[0]["transformer.h.0.attn.c_attn.weight"].state == "reset"


# --- Lightning ------------------------------------------------------------------------------------

def test_lightning(client, tmp_path):
    import lightning.pytorch as lightning
    from fired.callbacks.lightning import FiredCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

        def training_step(self, batch, index):
            loss = self.net(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)

    torch.manual_seed(0)
    module = Module()
    data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
    seen = []
    callback = FiredCallback(
        client, trigger=[Schedule(at=[5]), Plateau(patience=1000)], monitor="loss",
        on_reinit=lambda *_: seen.append(isometry(module.net[0].weight)))
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[callback], accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path)
    trainer.fit(module, data)
    assert seen == [True] and callback.loop.history[0][0] == 5
    assert callback.loop.history[0][2][0]["net.0.weight"].state == "reset"


# --- rules ----------------------------------------------------------------------------------------

def test_dormant_ratio_sets_off(client):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        net[0].bias.fill_(1.0)
        net[2].bias.fill_(1.0)
    loop = Loop(client, net, trigger=DormantRatio(threshold=0.2, every=10), watch=True)
    for step in range(1, 21):
        net(torch.randn(8, 4).clamp(-0.1, 0.1))
        assert not loop.step(step)
    with torch.no_grad():
        net[0].bias[:28] = -10.0
    fired_at = []
    for step in range(21, 31):
        net(torch.randn(8, 4).clamp(-0.1, 0.1))
        if loop.step(step):
            fired_at.append(step)
    assert fired_at == [30]
    assert "dormant ratio" in loop.history[0][1]


def test_plateau_waits_and_cools_down():
    rule = Plateau(patience=3, mode="max", cooldown=2)
    metrics = [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3]
    due = [step for step, metric in enumerate(metrics) if rule.due(Situation(step, metric))]
    assert due == [4, 9]
    assert rule.due(Situation(11, float("nan"))) is None
    assert rule.due(Situation(12)) is None


def test_rules_together_and_wrong_ones():
    rule = any_of([Schedule(at=[3]), TaskBoundary()])
    assert [bool(rule.due(Situation(s, task=s // 2))) for s in range(1, 6)] == [
        False, True, True, True, False]
    for wrong in (lambda: Schedule(), lambda: Schedule(every=0), lambda: Plateau(mode="up"),
                  lambda: Plateau(patience=0)):
        with pytest.raises(fired.ParameterError):
            wrong()


def test_advice_sets_off(client):
    """The daemon keeps what was measured; raw DfI that grows without end is what it warns of."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
                        nn.Linear(16, 2))
    loop = Loop(client, net, trigger=Advice(every=100), run="advice-test")
    for step in range(100, 1100, 100):
        assert not loop.step(step), "a run that does not change needs nothing"
    step, limit = 1000, time.monotonic() + WAIT_S
    while not loop.history and time.monotonic() < limit:  # what is measured is recorded a bit later
        step += 100
        if step < 6000:
            with torch.no_grad():
                net[0].weight.mul_(1.15)
        loop.step(step)
    assert loop.history, "the daemon never advised it"
    assert "0.weight" in loop.history[0][1]
    assert isometry(net[0].weight)
    with pytest.raises(fired.ParameterError, match="run="):
        Loop(client, net, trigger=Advice(every=1)).step(1)
    with pytest.raises(fired.ParameterError, match="no-such-run"):
        client.advise("no-such-run")
