"""Requests of the backend, made with the client that is first on the path; prints that client's version."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import tinker
from tinker.lib.public_interfaces.sampling_client import SamplingClient
from tinker.lib.public_interfaces.training_client import TrainingClient
from tinker.lib.retry_handler import RetryConfig
from tinker.proto.request_conv import forward_backward_request_to_proto

import lightning_core as lightning
from lightning_core.backends.settings import BETAS
from lightning_core.backends.tinker.batch import Datum
from lightning_core.backends.tinker.losses import find_loss
from lightning_core.backends.tinker.service import EPSILON, _plain, _with_loss

DATUM = Datum(
    tokens=np.array([5, 6, 7, 8]),
    targets=np.array([6, 7, 8, 9]),
    anchors=np.array([0, 0, -0.5, -0.25], dtype=np.float32),
    advantages=np.array([0, 0, 1, 3], dtype=np.float32),
    mask=np.array([0, 0, 1, 1], dtype=np.float32),
)
ARRAYS = {
    "target_tokens": DATUM.targets.tolist(),
    "logprobs": DATUM.anchors.tolist(),
    "advantages": DATUM.advantages.tolist(),
    "weights": DATUM.mask.tolist(),
}
CALLS = (
    (tinker.ServiceClient, (), {"base_url": "u", "api_key": "k"}),
    (tinker.ServiceClient.create_lora_training_client, (0, "m"), {"rank": 1, "seed": 0}),
    (tinker.RestClient, (), {"base_url": "u", "api_key": "k"}),
    (tinker.RestClient.get_server_capabilities, (0,), {}),
    (tinker.RestClient.get_external_weights_urls, (0, "p"), {}),
    (TrainingClient.get_info, (0,), {}),
    (TrainingClient.forward, (0, [], "cross_entropy"), {}),
    (TrainingClient.forward_backward, (0, [], "ppo", {}), {}),
    (TrainingClient.optim_step, (0, 0), {}),
    (TrainingClient.save_state, (0, "n"), {}),
    (TrainingClient.load_state_with_optimizer, (0, "p"), {}),
    (TrainingClient.save_weights_external, (0, "n"), {}),
    (TrainingClient.save_weights_and_get_sampling_client, (0,), {"retry_config": None}),
    (SamplingClient.sample, (0, 0, 1, 0), {}),
)
"""The client's methods, and arguments as the backend gives them."""


def check_update() -> None:
    """An update's bytes hold the tokens, the numbers of each, and the bounds of the loss."""
    loss = find_loss(lightning.GRPO(correction=None, clip=(0.2, 0.3)))
    data = [_with_loss(DATUM, weights=False), _with_loss(DATUM, weights=True), _plain(DATUM)]
    given = tinker.types.ForwardBackwardInput(data=data, loss_fn=loss.name, loss_fn_config=loss.bounds)
    request = tinker.types.ForwardBackwardRequest(forward_backward_input=given, model_id="m", seq_id=1)
    message = forward_backward_request_to_proto(request)
    read = type(message).FromString(message.SerializeToString())
    bounds = {name: round(value, 9) for name, value in read.loss_fn_config.items()}
    assert (read.loss_fn, bounds) == ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.3})
    sent = [
        {
            name: np.frombuffer(tensor.dense, np.int64 if "tokens" in name else np.float32).tolist()
            for name, tensor in datum.loss_fn_inputs.items()
        }
        for datum in read.data
    ]
    without = {name: values for name, values in ARRAYS.items() if name != "weights"}
    plain = {name: ARRAYS[name] for name in ("target_tokens", "weights")}
    assert sent == [without, ARRAYS, plain]


def main() -> None:
    """Raise what does not fit."""
    check_update()
    for method, arguments, named in CALLS:
        inspect.signature(method).bind(*arguments, **named)
    tinker.AdamParams(learning_rate=1e-3, beta1=BETAS[0], beta2=BETAS[1], eps=EPSILON, weight_decay=0.0)
    tinker.SamplingParams(max_tokens=1, seed=None, stop=[2], temperature=1.0, top_k=-1, top_p=1.0)
    RetryConfig(enable_retry_logic=False)
    sys.stdout.write(tinker.__version__)


if __name__ == "__main__":
    main()
