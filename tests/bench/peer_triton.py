"""Triton Inference Server (PyPI nvidia-pytriton) with the official loop inside: PORT STEPS."""
import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

import peer_model


def main():
    port, steps = int(sys.argv[1]), int(sys.argv[2])

    @batch
    def infer(weights):
        return [peer_model.project(weights, steps)]

    config = TritonConfig(grpc_port=port, http_port=port + 1, metrics_port=port + 2,
                          grpc_address="127.0.0.1", http_address="127.0.0.1", log_verbose=0)
    with Triton(config=config) as triton:
        shape = (peer_model.SIDE, peer_model.SIDE)
        triton.bind(model_name="fire", infer_func=infer,
                    inputs=[Tensor(name="weights", dtype=np.float32, shape=shape)],
                    outputs=[Tensor(name="projected", dtype=np.float32, shape=shape)],
                    config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(
                        max_queue_delay_microseconds=1000)))
        triton.serve()


main()
