"""vLLM's servers as the gateway sees them: the same chat requests and deltas as of the local engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lightning_core.backends.chat.completion import Completion
from lightning_core.backends.chat.folder import find_source, find_stop_ids, load_config, load_tokenizer
from lightning_core.backends.chat.replies import ChatGeneration
from lightning_core.backends.chat.upstream import ChatModel, ChatUpstream
from lightning_core.backends.vllm.replicas import Replicas
from lightning_core.errors import UnsupportedError
from lightning_core.upstream import ChatRequest


@dataclass(frozen=True, slots=True)
class _Engine:
    """The servers, and the tokens that end a reply."""

    replicas: Replicas
    stop_ids: frozenset[int]

    def submit(self, completion: Completion) -> None:
        self.replicas.submit(completion, self.stop_ids)


class VllmUpstream(ChatUpstream):
    """Serves chat completions from vLLM's servers (`upstream.Upstream`).

    Prompts are rendered here, with the tokenizer and template of the model's folder. Log-probabilities are
    those of the distribution sampled from: with `top_p` below 1, that of the tokens it leaves over.
    """

    def __init__(
        self, model_folder: str | Path, replicas: Replicas, *, name: str | None = None, seed: int | None = 0
    ) -> None:
        """`name` is what the model is called, the folder's own by default.

        With `seed` None, requests that have none are sent without: faster on a GPU, but servers that were
        started with one `--seed` may then sample alike. Raises ModelError.
        """
        source, called = find_source(model_folder)
        tokenizer = load_tokenizer(source)
        config, generation_config = load_config(source)
        stop_ids = find_stop_ids(generation_config, tokenizer)
        context = replicas.context or config.max_position_embeddings
        model = ChatModel(name or called, tokenizer, context, stop_ids, config.vocab_size)
        super().__init__(model, _Engine(replicas, stop_ids), seed=seed)
        self.replicas = replicas

    async def chat(self, request: ChatRequest) -> ChatGeneration:
        """Put the choices in line; the first request has the servers checked, if `check` was not called.

        Raises ContextLengthError or UnsupportedError before anything is sampled, EngineError for servers
        that can't be used.
        """
        if request.constraint is not None:
            raise UnsupportedError(
                f"with vLLM no reply can be held to a constraint yet ({request.constraint.kind}); leave it "
                "out, or use the local backend"
            )
        await self.check()
        return await super().chat(request)

    async def check(self) -> None:
        """Know from now on how long a prompt the servers take; those that can't be used raise EngineError."""
        context = self.replicas.context or await self.replicas.check()
        if context != self.model.context:
            self.model = replace(self.model, context=context)
