"""Tools of Anthropic's Messages as functions of a chat.

Anthropic defines some tools that the app runs: a request only names their type, since Anthropic's models know
the arguments. Here the model is told the arguments, as Anthropic documents them. Tools that run on
Anthropic's servers are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from lightning_core.dialects.lenient import Json
from lightning_core.dialects.strict import invalid, short, unsupported

HOSTED: Final = (
    *("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_", "mcp_toolset"),
)
"""How the types of tools begin that Anthropic's servers run."""
_TEXT: Final[Json] = {"type": "string"}
_LINES: Final[Json] = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "Of `view`: the first and the last line to show, from 1 on; -1 is the end of the file.",
}


def _schema(required: list[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": required}


def _editor(*commands: str, inserted: str) -> tuple[str, Json]:
    """The editor of files. `inserted` is the argument of `insert` that holds the new text."""
    properties: dict[str, Json] = {
        "command": {"enum": [*commands]},
        "path": _TEXT,
        "view_range": _LINES,
        "file_text": {**_TEXT, "description": "Of `create`: the content of the new file."},
        "old_str": {**_TEXT, "description": "Of `str_replace`: the text to replace, which occurs once."},
        "new_str": {**_TEXT, "description": "Of `str_replace`: the text in its place."},
        "insert_line": {
            "type": "integer",
            "description": "Of `insert`: the line after which the text is put; 0 is the beginning.",
        },
    }
    properties.setdefault(inserted, {**_TEXT, "description": "Of `insert`: the text."})
    return "Shows, creates and edits files.", _schema(["command", "path"], **properties)


_BASH: Final = (
    "Runs a command in a shell that keeps its state.",
    _schema([], command=_TEXT, restart={"type": "boolean", "description": "Start a new shell instead."}),
)
_MEMORY: Final = (
    "Keeps notes as files below /memories, which stay from one conversation to the next.",
    _schema(
        ["command"],
        command={"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        path=_TEXT,
        view_range=_LINES,
        file_text=_TEXT,
        old_str=_TEXT,
        new_str=_TEXT,
        insert_line={"type": "integer"},
        insert_text=_TEXT,
        old_path={**_TEXT, "description": "Of `rename`."},
        new_path={**_TEXT, "description": "Of `rename`."},
    ),
)
_OLD_EDITOR: Final = _editor("view", "create", "str_replace", "insert", "undo_edit", inserted="new_str")
_EDITOR: Final = _editor("view", "create", "str_replace", "insert", inserted="insert_text")
_RUN_BY_THE_APP: Final[Mapping[str, tuple[str, Json]]] = MappingProxyType(
    {
        "bash_20241022": _BASH,
        "bash_20250124": _BASH,
        "text_editor_20241022": _OLD_EDITOR,
        "text_editor_20250124": _OLD_EDITOR,
        "text_editor_20250429": _EDITOR,
        "text_editor_20250728": _EDITOR,
        "memory_20250818": _MEMORY,
    }
)
"""Description and arguments by the type of tool."""


def functions_of(tools: Any) -> Any:
    """The tools that the app runs, as functions. Raises ApiError for what is no tool that is known."""
    if not isinstance(tools, list):
        return tools
    return [
        _function(tool, f"tools[{index}]") for index, tool in enumerate(tools) if not is_hosted(_kind(tool))
    ]


def hosted(tools: Any) -> list[str]:
    """The types of the tools that the model is not told of."""
    kinds = map(_kind, tools if isinstance(tools, list) else ())
    return [kind for kind in kinds if is_hosted(kind)]


def offered(tool: Mapping[str, Any]) -> tuple[Any, Any]:
    """The name and the schema of one tool; none of a hosted one."""
    kind = _kind(tool)
    if is_hosted(kind):
        return None, None
    _, known = _RUN_BY_THE_APP.get(kind, ("", None))
    return tool.get("name"), tool.get("input_schema") or known


def is_hosted(kind: Any) -> bool:
    """Whether Anthropic's servers run tools of this type."""
    return isinstance(kind, str) and kind.startswith(HOSTED)


def _kind(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return kind if isinstance(kind, str) else None


def _function(tool: Any, param: str) -> Json:
    if not isinstance(tool, dict):
        raise invalid(param, f"{param} must be an object, not {type(tool).__name__}")
    kind = tool.get("type")
    if kind in (None, "custom"):
        kept = {"name": "name", "description": "description", "input_schema": "parameters"}
        function = {ours: tool[theirs] for theirs, ours in kept.items() if tool.get(theirs) is not None}
        return {"type": "function", "function": function}
    if not isinstance(kind, str) or kind not in _RUN_BY_THE_APP:
        raise unsupported(
            param,
            f"{param} has the type {short(kind)}; served are the app's own tools and "
            f"{', '.join(_RUN_BY_THE_APP)}",
        )
    description, parameters = _RUN_BY_THE_APP[kind]
    function = {"name": tool.get("name"), "description": description, "parameters": parameters}
    return {"type": "function", "function": function}
