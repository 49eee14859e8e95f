"""mosec (PyPI mosec) with the official loop inside: mosec's own flags; FIRED_BENCH_STEPS is k."""
import os

import numpy as np
from mosec import Server, Worker

import peer_model

STEPS = int(os.environ["FIRED_BENCH_STEPS"])


class Project(Worker):
    """Raw float32 bytes in, raw float32 bytes out."""

    def deserialize(self, data):
        return np.frombuffer(data, dtype=np.float32).reshape(peer_model.SIDE, peer_model.SIDE)

    def forward(self, data):
        return list(peer_model.project(np.stack(data), STEPS))

    def serialize(self, data):
        return data.tobytes()


if __name__ == "__main__":
    server = Server()
    server.append_worker(Project, num=1, max_batch_size=64, max_wait_time=1)
    server.run()
