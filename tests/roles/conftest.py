"""A real PostgreSQL server, as the stores' tests have it."""

from tests.stores.conftest import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
