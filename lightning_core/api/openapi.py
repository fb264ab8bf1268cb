"""The OpenAPI document: what FastAPI makes of the routes, with the words that stand in the code.

pydantic describes a type by its docstring but leaves out the docstrings of its fields, which are where this
project says what a field means. They are read from the source when the document is asked for the first time.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from lightning_core.api import refusals
from lightning_core.types import Record


def describe(app: FastAPI) -> FastAPI:
    """The same app, whose document has the docstrings of fields."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = plain()["components"]["schemas"]
            for model in _models(Record, refusals.Problem):
                _describe(schemas.get(model.__name__, {}), model)
        assert app.openapi_schema is not None
        return app.openapi_schema

    setattr(app, "openapi", openapi)  # noqa: B010 - the documented way to extend it, which mypy can't see
    return app


def _models(*roots: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for root in roots:
        yield root
        yield from _models(*root.__subclasses__())


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    for name, words in field_docstrings(model).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", words)


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """What stands under each field of a class."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(words.value.value)
        for field, words in zip(found.body, found.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
        and isinstance(words.value.value, str)
    }
