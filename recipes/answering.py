"""Replies of a policy that is being made, to many prompts at once."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

BATCH = 64
"""Prompts in one call of `generate`."""


@torch.inference_mode()
def answer(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[Any],
    greedy: bool,
    *,
    tools: list[Any] | None = None,
    most: int = 64,
) -> list[str]:
    """A reply of up to `most` tokens to each conversation, the most likely one or one sampled at T = 1."""
    replies: list[str] = []
    decoding: dict[str, Any] = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    for start in range(0, len(prompts), BATCH):
        inputs: Any = tokenizer.apply_chat_template(
            prompts[start : start + BATCH],
            tools=tools,
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        out = model.generate(**inputs, max_new_tokens=most, **decoding)
        new = out[:, inputs["input_ids"].shape[1] :]
        replies += tokenizer.batch_decode(new, skip_special_tokens=True)
    return replies
