"""How one model speaks: which thoughts, calls and channels its chat template knows, and what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_core.backends.serving.channels import TAGS, Channels
from lightning_core.backends.serving.forms import FORMS, OPENAI, Form, find_form, has_form
from lightning_core.backends.serving.replies import Parts
from lightning_core.backends.serving.tags import Thinking, find_thoughts
from lightning_core.backends.serving.tool_calls import ToolCalls, schemas_of
from lightning_core.dialects.upstream import ChatRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Speech:
    """Reads the replies of one model. Methods may be called from any thread."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._thoughts = find_thoughts(tokenizer)
        self._channels = has_form(tokenizer, OPENAI)

    @property
    def tags(self) -> frozenset[str]:
        """Tokens whose text is read here before an app sees any."""
        if self._channels:
            return TAGS
        thoughts = self._thoughts
        around = (thoughts.begin, thoughts.end, *(thoughts.reply or ())) if thoughts is not None else ()
        forms = [form.shown for form in FORMS if has_form(self._tokenizer, form)][:1]
        return frozenset(around).union(*forms)

    def check(self) -> Form:
        """The form of the model's calls. Raises UnsupportedError if it has none that is read here."""
        return find_form(self._tokenizer)

    def parts(self, request: ChatRequest, prompt: str) -> Parts | Channels | None:
        """Returns the reader of a reply to a prompt that ends so; None for a prompt that was given as it
        stands."""
        if request.prompt is not None:
            return None
        if self._channels:
            return Channels(schemas_of(request.tools) if request.tools else None)
        tools = ToolCalls(self.check(), schemas_of(request.tools)) if request.tools else None
        return Parts(self._thinking(request, prompt), tools)

    def _thinking(self, request: ChatRequest, prompt: str) -> Thinking | None:
        """None of a model that has no thoughts, or whose reply is held to a form."""
        if self._thoughts is None or request.constraint is not None:
            return None
        return Thinking(self._thoughts, begun=prompt.rstrip().endswith(self._thoughts.begin))
