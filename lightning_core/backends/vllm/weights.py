"""New weights for servers that run, without a restart: requests are held, and it is made sure that they took.

The servers need vLLM's development endpoints (`VLLM_SERVER_DEV_MODE=1`) and `worker.WeightLoading` for whole
weights, `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1` and `--enable-lora` for LoRA; `VllmServer` starts them so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lightning_core.backends.vllm.command import WORKER
from lightning_core.backends.vllm.replicas import Replicas
from lightning_core.errors import EngineError

NEAR = 1e-6
"""Relative: how far sums of the same weights may differ by the order in which they are added."""
RESET_SECONDS, AGAIN_SECONDS = 60.0, 0.05
"""How long replies that were just given up may hold their part of the prefix cache, as a server may be slow
to end them; and the pause between two tries."""
Give = Callable[[str], Awaitable[None]]
"""Gives what is new to the server at an address."""


async def publish(replicas: Replicas, give: Give, policy_version: int) -> None:
    """Hold requests, give the new weights to every server that answers, and serve again, by that version.

    A server that does not take them is out until `Replicas.restore` has given it the current ones. Raises
    EngineError, with the version as it was, if none took them.
    """
    await replicas.hold()
    try:
        living = [url for url in replicas.urls if url not in replicas.dead]
        said = await asyncio.gather(*map(give, living), return_exceptions=True)
        failed = {url: error for url, error in zip(living, said, strict=True) if error is not None}
        for url, error in failed.items():
            if not isinstance(error, EngineError):
                raise error
            await replicas.drop(url, str(error))
        if len(failed) == len(living):
            raise EngineError(
                f"no server took version {policy_version} of the weights: "
                f"{'; '.join(map(str, failed.values())) or 'none answers'}"
            )
        await replicas.set_version(policy_version, {*living} - {*failed})
    finally:
        await replicas.release()


async def load_weights(replicas: Replicas, url: str, folder: Path) -> None:
    """One server answers by the weights in a transformers folder. Raises EngineError if it does not."""
    try:
        said: Any = await replicas.ask(url, "/collective_rpc", _call("lightning_load", str(folder)))
    except EngineError as error:
        raise EngineError(
            f"{error}; weights are changed in place only where vLLM runs with VLLM_SERVER_DEV_MODE=1 and "
            f"--worker-extension-cls {WORKER}, as VllmServer starts it"
        ) from error
    for result in said["results"]:
        if "error" in result:
            raise EngineError(f"{url} can't take the weights in {str(folder)!r}: {result['error']}")
    if len(said["results"]) == 1:  # with several, each has a part and some parts twice
        _check_sums(url, said["results"][0], folder)
    await reset_prefixes(replicas, url)


def _check_sums(url: str, sums: dict[str, float], folder: Path) -> None:
    if abs(sums["after"] - sums["folder"]) > NEAR * sums["folder"]:
        raise EngineError(
            f"{url} does not have the weights in {str(folder)!r} after loading them: their absolute values "
            f"add up to {sums['folder']:.6f}, its own to {sums['after']:.6f} (before: {sums['before']:.6f}); "
            "its form of this model can't be changed in place"
        )


async def load_lora(replicas: Replicas, url: str, folder: Path, name: str) -> None:
    """One server has the LoRA in a peft folder under `name`, in place of an earlier one of that name.

    Raises EngineError if it has not.
    """
    body: dict[str, object] = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
    try:
        await replicas.ask(url, "/v1/load_lora_adapter", body)
    except EngineError as error:
        raise EngineError(
            f"{error}; LoRA is loaded only where vLLM runs with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and "
            "--enable-lora, as VllmServer starts it with lora_rank"
        ) from error
    models: Any = await replicas.ask(url, "/v1/models")
    if (name, str(folder)) not in {(card["id"], card.get("root")) for card in models["data"]}:
        raise EngineError(f"{url} does not serve the LoRA in {str(folder)!r} as {name!r} after loading it")
    await reset_prefixes(replicas, url)


async def reset_prefixes(replicas: Replicas, url: str) -> None:
    """Forget what other weights have computed. Raises EngineError if the server goes on to hold it."""
    until = time.monotonic() + RESET_SECONDS
    while True:
        said: Any = await replicas.ask(url, "/reset_prefix_cache", {})
        if said is None or said.get("success", True):  # older ones do not say
            return
        if time.monotonic() > until:
            break
        await asyncio.sleep(AGAIN_SECONDS)
    raise EngineError(
        f"{url} still holds prefixes that older weights have computed; requests are under way there"
    )


def _call(method: str, *arguments: str) -> dict[str, object]:
    return {"method": method, "args": list(arguments)}
