"""What every stored or sent value is built on."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of everything that is stored or sent: frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
