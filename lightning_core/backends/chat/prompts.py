"""Messages to prompt ids, through the model's own chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from lightning_core.errors import UnsupportedError
from lightning_core.json_text import JsonError, read_written, whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    options: dict[str, Any],
) -> list[int]:
    """Token ids of the prompt, up to where the reply begins.

    Raises UnsupportedError for content that is not text, and for messages that the template refuses.
    """
    return _encode(tokenizer, _write(tokenizer, messages, tools, options, asks=True))


def _write(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    options: dict[str, Any],
    *,
    asks: bool,
) -> str:
    """The conversation as text; `asks` adds what stands before a reply."""
    try:
        plain = [plain_message(message) for message in messages]
        text = tokenizer.apply_chat_template(
            plain, tools=tools or None, add_generation_prompt=asks, tokenize=False, **options
        )
        return str(text)
    except (TemplateError, TypeError, ValueError, AttributeError) as error:
        raise UnsupportedError(
            f"the model's chat template refuses these messages: {error}; change the messages or "
            "use another model"
        ) from error


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer.backend_tokenizer.encode(whole(text), add_special_tokens=False).ids
    return ids


def render_reply(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    reply: dict[str, Any],
    tools: list[dict[str, Any]] | None,
    options: dict[str, Any],
    stop_ids: frozenset[int],
) -> tuple[list[int], list[int]]:
    """Token ids of a prompt and of its reply, as if the model had sampled it, the stop token included.

    The reply is what the template writes after the prompt, up to the stop token: so a tool call has the form
    that the model knows. Raises UnsupportedError for a reply that the template can't write so.
    """
    prompt = _write(tokenizer, messages, tools, options, asks=True)
    whole = _write(tokenizer, [*messages, reply], tools, options, asks=False)
    if not whole.startswith(prompt):
        raise UnsupportedError(
            "the model's chat template writes these messages otherwise once they are answered, so it does "
            "not say what the model itself would write; use a model with another template"
        )
    ids = _encode(tokenizer, whole[len(prompt) :])
    end = next((place for place, token_id in enumerate(ids) if token_id in stop_ids), None)
    if end is None or tokenizer.decode(ids[end + 1 :]).strip():
        raise UnsupportedError(
            "the reply, as the model's chat template writes it, does not end with a stop token, or goes on "
            "after one; take special tokens out of its text, or use a model with another template"
        )
    return _encode(tokenizer, prompt), ids[: end + 1]


def raw_ids(tokenizer: PreTrainedTokenizerBase, prompt: str | list[int], vocabulary: int) -> list[int]:
    """Token ids of a prompt that needs no template; text begins as the tokenizer has every text begin.

    Raises UnsupportedError for an id that the model, of so many tokens, does not have.
    """
    if isinstance(prompt, str):
        ids: list[int] = tokenizer.backend_tokenizer.encode(whole(prompt)).ids
        return ids
    for token_id in prompt:
        if not 0 <= token_id < vocabulary:
            raise UnsupportedError(
                f"the prompt holds the token id {token_id}; the model's go from 0 to {vocabulary - 1}"
            )
    return list(prompt)


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: content as text, tool arguments as a mapping, a known role."""
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = plain_text(message.get("content"))
    if plain.get("role") == "developer":
        plain["role"] = "system"
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in plain["tool_calls"]]
    return plain


def plain_text(content: Any) -> str:
    """The text of a message's content, which may be a string, a list of parts or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in TEXT_PARTS:
            raise UnsupportedError(f"a message holds a part of type {kind!r}; the model reads text only")
        texts.append(str(part.get("text", part.get("refusal", ""))))
    return "".join(texts)


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = read_written(arguments)
        except JsonError:
            function["arguments"] = arguments  # the model's own mistake, shown to it as it was
    return {**call, "function": function}
