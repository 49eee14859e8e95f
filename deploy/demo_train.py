"""The training of deploy/demo: digits with random labels, new ones for every task.

A network that still can learn memorises each task; one that has lost its plasticity does not. Run
digits-left-alone is only watched. Run digits-rescued is the same network with the same labels, but
half-way its weights go through fired (`firectl reinit`) and Adam's state starts anew: its accuracy
comes back. The statistics are measured here and sent to the daemon; the reinit records itself.
"""
import argparse
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_digits

SAMPLES, CLASSES, BATCH, RATE = 1000, 10, 50, 3e-3
SIZES = (64, 128, 128, 128, CLASSES)
LAYERS = ("input", "hidden.0", "hidden.1", "output")
TASKS = 10
EPOCHS, QUICK_EPOCHS = 20, 12
MEASURE_EVERY = 20  # steps
DORMANT = 0.025  # a unit below this share of the mean activity
TRIES = 20


class Network:
    """A multi-layer perceptron with ReLU and Adam, in plain numpy."""

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.parameters = []
        for inputs, outputs in zip(SIZES, SIZES[1:]):
            bound = 1 / np.sqrt(inputs)
            self.parameters.append([random.uniform(-bound, bound, shape).astype("f4")
                                    for shape in ((outputs, inputs), (outputs,))])
        self.reset_optimizer()

    def reset_optimizer(self):
        self.first = [[np.zeros_like(one) for one in pair] for pair in self.parameters]
        self.second = [[np.zeros_like(one) for one in pair] for pair in self.parameters]
        self.steps = 0

    def forward(self, inputs):
        """Activations of every layer; the last are logits."""
        hidden = [inputs]
        for number, (weight, bias) in enumerate(self.parameters):
            out = hidden[-1] @ weight.T + bias
            hidden.append(out if number == len(LAYERS) - 1 else np.maximum(out, 0))
        return hidden

    def gradients(self, inputs, labels):
        """(loss, [(weight, bias)]) of the cross entropy."""
        hidden = self.forward(inputs)
        logits = hidden[-1] - hidden[-1].max(1, keepdims=True)
        shares = np.exp(logits)
        shares /= shares.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float(-np.log(shares[rows, labels] + 1e-12).mean())
        shares[rows, labels] -= 1
        back, found = shares / len(labels), []
        for number in range(len(LAYERS) - 1, -1, -1):
            found.append((back.T @ hidden[number], back.sum(0)))
            if number:
                back = (back @ self.parameters[number][0]) * (hidden[number] > 0)
        return loss, found[::-1]

    def step(self, inputs, labels):
        loss, gradients = self.gradients(inputs, labels)
        self.steps += 1
        fade = 1 - 0.9 ** self.steps, 1 - 0.999 ** self.steps
        for pair, first, second, gradient in zip(self.parameters, self.first, self.second,
                                                 gradients):
            for one, mean, square, slope in zip(pair, first, second, gradient):
                mean += 0.1 * (slope - mean)
                square += 0.001 * (slope * slope - square)
                one -= RATE * (mean / fade[0]) / (np.sqrt(square / fade[1]) + 1e-8)
        return loss


def dfi(weight):
    """Distance from isometry: ||G - I||² with the Gram matrix of the short side."""
    tall = weight.astype("f8")
    gram = tall @ tall.T if weight.shape[0] <= weight.shape[1] else tall.T @ tall
    return float(np.square(gram - np.eye(len(gram))).sum())


def measure(network, inputs, labels):
    """{(layer, statistic): value} on the whole set."""
    hidden = network.forward(inputs)
    loss, gradients = network.gradients(inputs, labels)
    accuracy = float((hidden[-1].argmax(1) == labels).mean())
    values = {("", "loss"): loss, ("", "accuracy"): accuracy}
    for number, name in enumerate(LAYERS):
        values[name, "dfi"] = dfi(network.parameters[number][0])
        values[name, "gradient_norm"] = float(np.linalg.norm(gradients[number][0]))
        if number < len(LAYERS) - 1:
            activity = np.abs(hidden[number + 1]).mean(0)
            values[name, "dormant_ratio"] = float(
                (activity / (activity.mean() + 1e-9) <= DORMANT).mean())
    return values


class Reporter:
    """Points to the daemon's JSON API, many in one request."""

    def __init__(self, http, run, name, labels):
        self.url, self.run = f"{http}/api/v1/report", run
        self.info = {"name": name, "framework": "numpy", "labels": labels}
        self.series = {}

    def add(self, step, values):
        for key, value in values.items():
            steps, numbers = self.series.setdefault(key, ([], []))
            steps.append(step)
            numbers.append(value)

    def send(self):
        shapes = dict(zip(LAYERS, zip(SIZES[1:], SIZES)))
        series = [{"layer": layer, "statistic": statistic, "steps": steps, "values": numbers,
                   "shape": shapes.get(layer, ())}
                  for (layer, statistic), (steps, numbers) in self.series.items()]
        body = json.dumps({"run": self.run, "info": self.info, "series": series}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        for tried in range(1, TRIES + 1):
            try:
                urllib.request.urlopen(request, timeout=60).close()
                break
            except urllib.error.HTTPError as error:
                if error.code != 503 or tried == TRIES:
                    raise SystemExit(f"demo: the report was refused: {error.read().decode()}")
        self.series = {}


def rescue(network, arguments, run, step):
    """The weights through fired; the biases and nothing else stay."""
    before, after = (Path(arguments.folder) / f"{word}.safetensors" for word in ("before", "after"))
    save_file({name: pair[0] for name, pair in zip(LAYERS, network.parameters)}, before)
    subprocess.run([arguments.firectl, "reinit", "--addr", arguments.address, str(before),
                    "-o", str(after), "--arch", "none", "--set", "scale=one", "--spectrum",
                    "--run", run, "--step", str(step)], check=True, stdout=subprocess.DEVNULL)
    weights = load_file(after)
    for name, pair in zip(LAYERS, network.parameters):
        pair[0][:] = weights[name]
    network.reset_optimizer()


def train(arguments, run, name, rescued):
    """The accuracy at the end of each task."""
    inputs = load_digits().data[:SAMPLES].astype("f4") / 16
    inputs = (inputs - inputs.mean()) / inputs.std()
    network, random = Network(seed=0), np.random.default_rng(1)
    reporter = Reporter(arguments.http, run, name, {"data": "digits", "labels": "random"})
    epochs, step, ends = QUICK_EPOCHS if arguments.quick else EPOCHS, 0, []
    for task in range(TASKS):
        labels = random.integers(0, CLASSES, SAMPLES)
        if rescued and task == TASKS // 2:
            rescue(network, arguments, run, step)
            print(f"  step {step}: reinitialised by fired", flush=True)
        for _ in range(epochs):
            order = random.permutation(SAMPLES)
            for start in range(0, SAMPLES, BATCH):
                chosen = order[start:start + BATCH]
                if step % MEASURE_EVERY == 0:
                    reporter.add(step, measure(network, inputs, labels))
                network.step(inputs[chosen], labels[chosen])
                step += 1
            reporter.send()
        ends.append(measure(network, inputs, labels)["", "accuracy"])
        print(f"  {name}: task {task + 1} of {TASKS}: {ends[-1]:.0%} learned", flush=True)
    return ends


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("address", "http", "firectl", "folder"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    arguments = parser.parse_args()
    alone = train(arguments, "digits-left-alone", "digits, left alone", False)
    saved = train(arguments, "digits-rescued", "digits, rescued half-way", True)
    half = TASKS // 2
    print(f"  learned in the tasks after the half: {np.mean(alone[half:]):.0%} left alone, "
          f"{np.mean(saved[half:]):.0%} rescued")


if __name__ == "__main__":
    main()
