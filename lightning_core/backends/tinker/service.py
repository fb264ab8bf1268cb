"""The only file that touches the client's package, `tinker`: sessions, futures and errors of a service.

The key is read from the environment by the client itself; it is never kept here, nor written anywhere.
"""

from __future__ import annotations

import os
import tarfile
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightning_core.backends.serving.completion import Completion
from lightning_core.backends.settings import BETAS
from lightning_core.backends.tinker.batch import Datum
from lightning_core.backends.tinker.losses import ServiceLoss
from lightning_core.backends.weights.folders import ADAPTER, ADAPTER_CONFIG
from lightning_core.errors import BackendError, ConfigError, EngineError
from lightning_core.experience.trajectories import Floats
from lightning_core.texts.masking import without_password

KEY: Final = "TINKER_API_KEY"
URL: Final = "TINKER_BASE_URL"
COMMAND: Final = "TINKER_CREDENTIAL_CMD"
NO_KEY: Final = "tml-none"
"""Sent to a server of one's own where the environment has no key: the client does not start without one."""
DOWNLOAD_SECONDS: Final = 600.0
"""Silence after which a download is given up."""
EPSILON: Final = 1e-8
"""AdamW's, as in the local backend."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that the service sampled."""

    ids: list[int]
    logprobs: list[float]
    reason: str
    """ "stop" or "length"."""


class ServiceSampler:
    """One version of the weights, as the service samples from it."""

    def __init__(self, client: Any, url: str) -> None:
        self._client, self._url = client, url

    def sample(self, completion: Completion, seed: int | None, stop_ids: Sequence[int]) -> Future[Any]:
        """Ask for one reply; returns its future, which a thread of the client sets.

        A reply that fails is not asked for again, but the client sends a request again that got no answer,
        for up to five minutes. Raises EngineError.
        """
        import tinker

        options = completion.options
        params = tinker.SamplingParams(
            max_tokens=options.max_tokens,
            seed=seed,
            stop=list(stop_ids),
            temperature=options.temperature,
            top_k=options.shaping.top_k or -1,
            top_p=options.top_p,
        )
        with _answering(self._url, EngineError):
            asked = self._client.sample(tinker.ModelInput.from_ints(completion.prompt_ids), 1, params)
            future: Future[Any] = asked.future() if hasattr(asked, "future") else asked
        return future

    def read(self, future: Future[Any]) -> Reply:
        """The reply of a future that is done. Raises EngineError."""
        with _answering(self._url, EngineError):
            (sequence,) = future.result().sequences
            ids, logprobs = list(sequence.tokens), sequence.logprobs
            told = logprobs is not None and len(logprobs) == len(ids) and None not in list(logprobs)
        if not told or not np.isfinite(logprobs).all():
            raise EngineError(
                f"the service at {self._url} answered {len(ids)} tokens without a finite log-probability of "
                "each, so "
                "they can't be trained on; update it, or use another"
            )
        return Reply(ids, list(logprobs), str(sequence.stop_reason))


class Service:
    """A connection to a service, and the model that it trains for us."""

    def __init__(self, url: str | None, base_model: str, rank: int, seed: int) -> None:
        """Connect and have a model made. Raises ConfigError for a key or a model that it does not have,
        BackendError if it does not answer."""
        tinker = import_client()
        self.url = without_password(url or os.environ.get(URL) or "https://tinker.thinkingmachines.dev")
        options: dict[str, Any] = {} if url is None else {"base_url": url}
        if not os.environ.get(KEY) and not os.environ.get(COMMAND):
            if url is None and not os.environ.get(URL):
                raise ConfigError(
                    f"the service at {self.url} needs a key: set {KEY} in the environment, or give the "
                    "url=... of a "
                    "server of your own"
                )
            options["api_key"] = NO_KEY
        self._retries = tinker.lib.retry_handler.RetryConfig(enable_retry_logic=False)
        with _answering(self.url, BackendError):
            self._client = tinker.ServiceClient(**options)
        try:
            with _answering(self.url, BackendError):
                self._rest = _rest_client(self._client, options)
                served = _settled(_capable(self._rest, self._client).get_server_capabilities())
            self.context = _find_context(self.url, base_model, served.supported_models)
            with _answering(self.url, BackendError):
                self._model = _settled(
                    self._client.create_lora_training_client(base_model, rank=rank, seed=seed)
                )
        except BaseException:
            self.close()
            raise

    def find_tokenizer(self) -> str | None:
        """The name or folder of the model's tokenizer, as the service calls it; None if it does not say."""
        with _answering(self.url, BackendError):
            data = self._model.get_info().model_data
        name: str | None = data.tokenizer_id or data.model_name
        if name is None or Path(name).exists():
            return name
        return name.partition(":")[0]  # after it stands a variant of the service's

    def close(self) -> None:
        """End the session; the service frees the model some minutes later."""
        self._client.holder.close()

    # weights ------------------------------------------------------------------------------
    def publish(self) -> ServiceSampler:
        """The weights as they are, to sample from."""
        with _answering(self.url, BackendError):
            client = _settled(self._model.save_weights_and_get_sampling_client(retry_config=self._retries))
        return ServiceSampler(client, self.url)

    def save(self, name: str) -> str:
        """Have the service keep weights and optimizer state; returns their path there."""
        with _answering(self.url, BackendError):
            return str(self._model.save_state(name).result().path)

    def load(self, path: str) -> None:
        """Go on from what `save` kept."""
        with _answering(self.url, BackendError):
            self._model.load_state_with_optimizer(path).result()

    def download(self, name: str, folder: Path) -> None:
        """Write the adapters as they are to a folder, in PEFT's format."""
        with _answering(self.url, BackendError):
            if hasattr(self._rest, "get_checkpoint_archive_url"):  # until client 0.35
                path = str(self._model.save_weights_for_sampler(name).result().path)
                run, _, checkpoint = path.removeprefix("tinker://").partition("/")
                found = self._rest.get_checkpoint_archive_url(run, checkpoint).result()
                with tarfile.open(fileobj=BytesIO(_read(found.url))) as archive:
                    archive.extractall(folder, filter="data")
            else:
                path = str(self._model.save_weights_external(name).result().path)
                urls = self._rest.get_external_weights_urls(path).result().urls
                for file in {ADAPTER, ADAPTER_CONFIG} & urls.keys():
                    (folder / file).write_bytes(_read(urls[file]))
        if not (folder / ADAPTER).is_file():
            raise BackendError(
                f"the service at {self.url} sent no {ADAPTER} for {path}; the weights are still there under "
                "that path"
            )

    # training -----------------------------------------------------------------------------
    def forward(self, data: Sequence[Datum]) -> list[Floats]:
        """(L,) log-probability of each target of each datum under the weights as they are."""
        with _answering(self.url, BackendError):
            result = self._model.forward([_plain(each) for each in data], "cross_entropy").result()
        return _logprobs(result, data)

    def learn(
        self, data: Sequence[Datum], loss: ServiceLoss, rate: float, *, weights: bool
    ) -> tuple[list[Floats], dict[str, float]]:
        """One step of AdamW down the gradient of the data. Returns the log-probabilities before it, and what
        the service measured. `weights` sends those that tell tokens with loss from others, which only a mean
        over them needs.

        Raises BackendError, with the weights as they were, if a log-probability is not finite; the service
        then holds a gradient that can't be taken back.
        """
        import tinker

        with _answering(self.url, BackendError):
            made = [_with_loss(each, weights=weights) for each in data]
            logprobs = _logprobs(self._model.forward_backward(made, loss.name, loss.bounds).result(), data)
            if not all(np.isfinite(each).all() for each in logprobs):
                raise BackendError(
                    f"the service at {self.url} computed log-probabilities that are not finite, and its "
                    "gradient can't "
                    "be taken back: resume the run, which goes on from its last checkpoint, with a lower "
                    "learning rate"
                )
            params = tinker.AdamParams(
                learning_rate=rate, beta1=BETAS[0], beta2=BETAS[1], eps=EPSILON, weight_decay=0.0
            )
            measured = self._model.optim_step(params).result().metrics or {}
        return logprobs, dict(measured)


def import_client() -> Any:
    """The client's package. Raises ConfigError where it is missing."""
    try:
        import tinker
        import tinker.lib.retry_handler
    except ImportError as error:
        raise ConfigError(
            "backend 'tinker' needs the service's client: pip install 'agent-lightning-core[tinker]'"
        ) from error
    return tinker


def _settled(asked: Any) -> Any:
    """The result of a future. Older clients give some results at once."""
    return asked.result() if hasattr(asked, "result") else asked


def _rest_client(client: Any, options: dict[str, Any]) -> Any:
    """The client's part for what belongs to no session. From 0.36 on it is made by itself."""
    import tinker

    return tinker.RestClient(**options) if hasattr(tinker, "RestClient") else client.create_rest_client()


def _capable(rest: Any, client: Any) -> Any:
    """Whichever of the two can be asked what the service serves: the first from 0.37 on."""
    return rest if hasattr(rest, "get_server_capabilities") else client


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as response:
        content: bytes = response.read()
    return content


@contextmanager
def _answering(url: str, kind: type[BackendError] | type[EngineError]) -> Iterator[None]:
    """Raise what the client meets as an error of this package. Boundary: the client raises its own errors,
    and those of its HTTP library, and plain ones."""
    try:
        yield
    except (BackendError, EngineError):
        raise
    except Exception as error:
        import tinker

        raise kind(
            f"the service at {url} failed: {type(error).__name__}: {error} (asked by client "
            f"{tinker.__version__}; docs/tinker.md says which client a server takes)"
        ) from error


def _find_context(url: str, base_model: str, served: Sequence[Any]) -> int | None:
    """The longest context that the service takes; None if it does not say. Raises ConfigError for a model
    that it does not serve."""
    names = {each.model_name: each.max_context_length for each in served}
    if base_model not in names:
        raise ConfigError(
            f"the service at {url} does not serve {base_model!r} but {sorted(map(str, names))}; give one of "
            "them as "
            "model=..., or as base_model=... beside the folder with its tokenizer"
        )
    found: int | None = names[base_model]
    return found


def _plain(datum: Datum) -> Any:
    return _make(datum, weights=datum.mask)


def _with_loss(datum: Datum, *, weights: bool) -> Any:
    mask = {"weights": datum.mask} if weights else {}
    return _make(datum, logprobs=datum.anchors, advantages=datum.advantages, **mask)


def _make(datum: Datum, **inputs: Floats) -> Any:
    import tinker

    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(datum.tokens.tolist()),
        loss_fn_inputs={"target_tokens": datum.targets, **inputs},
    )


def _logprobs(result: Any, data: Sequence[Datum]) -> list[Floats]:
    """(L,) of each datum. Raises BackendError for a service that does not give them."""
    found = [
        np.asarray(each["logprobs"].data, dtype=np.float32)
        for each in result.loss_fn_outputs
        if "logprobs" in each
    ]
    if [len(each) for each in found] != [len(each.targets) for each in data]:
        raise BackendError("the service answered an update without the log-probability of each token")
    return found
