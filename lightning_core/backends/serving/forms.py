"""The forms in which models write calls of tools, in one table: how a chat template shows that it has a form,
how calls are read, and of which pieces a forced call is made.

The names are those of vLLM's parsers, which read the same forms. They are read here, as one reader then
serves every engine, and a call that is forced by a grammar is written in the form that is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from lightning_core.backends.serving.reading import (
    Reading,
    read_deepseek,
    read_functions,
    read_granite,
    read_keys,
    read_kimi,
    read_mistral,
    read_object,
    read_objects,
    read_python,
)
from lightning_core.errors import UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DIGITS: Final = "\0digits"
"""Stands among the pieces of a form for any number."""


_OBJECT: Final = re.compile(r"\{\s*(\"(n(a(me?)?)?)?|\"name\"\s*:?\s*|\"name\"\s*:\s*\".*)?", re.DOTALL)
_LIST: Final = re.compile(r"\[\s*[\w.-]*(\(.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tags:
    """The text `before` the name of an argument, `between` name and value, and `after` it."""

    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True)
class Form:
    """How calls stand in a reply: `first`, the calls with `between` them, `last`.

    A call is `before`, then name and arguments as `written` says, then `after`. A piece that is a token of
    the model is that token.
    """

    name: str
    """vLLM's for its parser."""
    read: Reading
    marks: tuple[tuple[str, ...], ...] = ()
    """Texts that show a template to have this form: all of one group."""
    first: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()
    """Before the name, where that does not stand within one JSON object."""
    middle: tuple[str, ...] = ()
    """Between name and arguments, as above."""
    tail: str = ""
    after: tuple[str, ...] = ()
    between: str = ""
    last: tuple[str, ...] = ()
    arguments: Literal["json", "tags", "python"] = "json"
    key: str = "arguments"
    """The arguments' name in a call that is one JSON object; "" if it is none."""
    tags: Tags | None = None
    """Around each argument, where they are not one JSON object."""
    also: tuple[tuple[str, str], ...] = ()
    """Other tags that models begin and end calls with. What is read then begins with the first of them."""
    begins: str = "{"
    """Without an opening tag, a reply that begins so may be calls."""
    begun: re.Pattern[str] = _OBJECT
    """All of a reply that was cut, where it is the beginning of a call without a tag."""
    single: bool = False
    """A reply is one call at most."""
    short_ids: bool = False
    """Mistral's templates refuse ids that have other than 9 letters and digits."""

    @property
    def opening(self) -> str:
        """Calls begin with it; with "", at the beginning of a reply."""
        return next((each for each in self.before + self.first if each.strip(" [")), "")

    @property
    def closing(self) -> str:
        """A call ends with it, or all calls if they have one tag; with "", they end with the reply."""
        return next((each for each in (self.after or self.last)[-1:] if each.strip(" ]")), "")

    @property
    def silent(self) -> tuple[str, ...]:
        """Tags that say nothing where no call is open."""
        around = tuple(each for each in self.first + self.last if each.strip(" []"))
        closing = (self.closing,) if self.closing and (self.also or self.last) else ()
        return (*(around if self.before else ()), *closing)

    @property
    def shown(self) -> frozenset[str]:
        """Texts that `read` needs to see, also where they are tokens that have no text for the app."""
        pieces = (*self.before, *self.lead, *self.middle, self.opening, self.closing)
        return frozenset({*pieces, *(tag for pair in self.also for tag in pair)}) - {""}

    def marked(self, template: str) -> bool:
        """Whether a template shows that it has this form."""
        return any(all(mark in template for mark in marks) for marks in self.marks)

    def written(self, name: str) -> tuple[tuple[str, ...], str]:
        """Returns the text before and after the arguments of a function."""
        if self.key:
            return (f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.key}": ',), "}"
        return (*self.lead, name, *self.middle), self.tail


OPENAI: Final = Form(
    "openai",
    read_object,
    marks=(("<|channel|>", "<|message|>"),),
    before=(" to=functions.",),
    middle=("<|channel|>", "commentary json", "<|message|>"),
    after=("<|call|>",),
    key="",
    single=True,
)
"""gpt-oss's harmony, which `channels` reads: its messages are thoughts, content and calls alike."""
KIMI: Final = Form(
    "kimi_k2",
    read_kimi,
    marks=(("<|tool_calls_section_begin|>",), ("tool_declare<|im_middle|>",)),
    first=("<|tool_calls_section_begin|>",),
    before=("<|tool_call_begin|>",),
    lead=("functions.",),
    middle=(":", DIGITS, "<|tool_call_argument_begin|>"),
    after=("<|tool_call_end|>",),
    last=("<|tool_calls_section_end|>",),
    key="",
)
DEEPSEEK: Final = Form(
    "deepseek_v3",
    read_deepseek,
    marks=(("<｜tool▁calls▁begin｜>", "```json"),),
    first=("<｜tool▁calls▁begin｜>",),
    before=("<｜tool▁call▁begin｜>",),
    lead=("function", "<｜tool▁sep｜>"),
    middle=("\n```json\n",),
    tail="\n```",
    after=("<｜tool▁call▁end｜>",),
    between="\n",
    last=("<｜tool▁calls▁end｜>",),
    key="",
)
DEEPSEEK_V31: Final = replace(
    DEEPSEEK,
    name="deepseek_v31",
    marks=(("<｜tool▁calls▁begin｜>",),),
    lead=(),
    middle=("<｜tool▁sep｜>",),
    tail="",
    between="",
)
GRANITE: Final = Form(
    "granite",
    read_granite,
    marks=(("<|tool_call|>",),),
    first=("<|tool_call|>", "["),
    between=", ",
    last=("]",),
    also=(("<tool_call>", ""),),
)
SEED: Final = Form(
    "seed_oss",
    read_functions,
    marks=(("<seed:tool_call>",),),
    before=("<seed:tool_call>", "\n"),
    lead=("<function=",),
    middle=(">\n",),
    tail="</function>\n",
    after=("</seed:tool_call>",),
    between="\n",
    arguments="tags",
    key="",
    tags=Tags("<parameter=", ">", "</parameter>\n"),
)
QWEN: Final = Form(
    "qwen3_xml",
    read_functions,
    marks=(("<tool_call>", "<function="),),
    before=("<tool_call>", "\n"),
    lead=("<function=",),
    middle=(">\n",),
    tail="</function>\n",
    after=("</tool_call>",),
    between="\n",
    arguments="tags",
    key="",
    tags=Tags("<parameter=", ">\n", "\n</parameter>\n"),
    also=(("<function=", "</function>"),),
)
GLM: Final = Form(
    "glm45",
    read_keys,
    marks=(("<arg_key>", "<tool_call>{function-name}\n"),),
    before=("<tool_call>",),
    middle=("\n",),
    after=("</tool_call>",),
    between="\n",
    arguments="tags",
    key="",
    tags=Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
)
GLM47: Final = replace(
    GLM,
    name="glm47",
    marks=(("<arg_key>",),),
    middle=(),
    between="",
    tags=Tags("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
)
LFM2: Final = Form(
    "lfm2",
    read_python,
    marks=(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
    first=("<|tool_call_start|>", "["),
    middle=("(",),
    tail=")",
    between=", ",
    last=("]", "<|tool_call_end|>"),
    arguments="python",
    key="",
    tags=Tags("", "=", ", "),
)
HERMES: Final = Form(
    "hermes",
    read_object,
    marks=(("<tool_call>",),),
    before=("<tool_call>", "\n"),
    after=("\n", "</tool_call>"),
    between="\n",
)
MISTRAL_ARGS: Final = Form(
    "mistral",
    read_mistral,
    marks=(("[TOOL_CALLS]", "[ARGS]"),),
    before=("[TOOL_CALLS]",),
    middle=("[ARGS]",),
    key="",
    short_ids=True,
)
MISTRAL: Final = Form(
    "mistral",
    read_mistral,
    marks=(("[TOOL_CALLS]",),),
    first=("[TOOL_CALLS]", " ["),
    between=", ",
    last=("]",),
    short_ids=True,
)
PYTHONIC: Final = Form(
    "pythonic",
    read_python,
    marks=(("params_name1=",), ("[func_name1(",)),
    first=("[",),
    last=("]",),
    middle=("(",),
    tail=")",
    between=", ",
    arguments="python",
    key="",
    tags=Tags("", "=", ", "),
    also=(("<|python_start|>", "<|python_end|>"),),
    begins="[",
    begun=_LIST,
)
"""Llama 4's, and Gemma 3's with a template that has tools: a list is the whole reply."""
LLAMA3: Final = Form("llama3_json", read_objects, (('"parameters": ',),), between="; ", key="parameters")
JSON: Final = Form("llama3_json", read_objects, (('"arguments"',),), between="; ")
FORMS: Final = (
    *(OPENAI, KIMI, DEEPSEEK, DEEPSEEK_V31, GRANITE, SEED, QWEN, GLM, GLM47, LFM2, HERMES),
    *(MISTRAL_ARGS, MISTRAL, PYTHONIC, LLAMA3, JSON),
)
"""In the order in which a template is asked for their marks."""
_UNREAD: Final = {
    "<minimax:tool_call>": "minimax_m2",
    "<|tool_call>": "gemma4",
    "<start_function_call>": "functiongemma",
    "<TOOLCALL>": "nemotron_json",
    "<|action_start|>": "internlm",
    "functools[": "phi4_mini_json",
    "｜DSML｜": "deepseek_v32",
}
NAMES: Final = ", ".join(dict.fromkeys(form.name for form in FORMS))


def template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """The source of the model's chat template, of all of them if it has several."""
    template = tokenizer.chat_template
    sources = template.values() if isinstance(template, dict) else [template or ""]
    return "\n".join(map(str, sources))


def has_form(tokenizer: PreTrainedTokenizerBase, form: Form) -> bool:
    """Whether the model's chat template shows this form."""
    return form.marked(template_text(tokenizer))


def find_form(tokenizer: PreTrainedTokenizerBase) -> Form:
    """How the model's chat template writes calls. Raises UnsupportedError for none, and for another form."""
    text = template_text(tokenizer)
    unread = next((name for mark, name in _UNREAD.items() if mark in text), None)
    if unread is not None:
        raise UnsupportedError(
            f"this model's chat template writes tool calls in the form that vLLM calls {unread!r}, which is "
            f"not read here; use a model of one of the forms {NAMES} (docs/own-model.md)"
        )
    if not re.search(r"\btools\b", text):
        raise UnsupportedError(
            "this model's chat template knows no tools, so the model would not be told of them; leave tools "
            "out, or use a model whose template has them (docs/own-model.md)"
        )
    found = next((form for form in FORMS if form.marked(text)), None)
    if found is not None:
        return found
    raise UnsupportedError(
        "this model's chat template does not say how tools are called, so calls would not be seen; leave "
        f"tools out, or use a model of one of the forms {NAMES} (docs/own-model.md)"
    )
