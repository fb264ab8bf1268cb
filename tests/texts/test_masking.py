"""Secrets are left out of what is shown or written, and nothing else is."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from lightning_core.texts.masking import is_secret, mask, masked, without_password


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgresql://me:p@ss/w@host/db", "postgresql://***@host/db"),
        ("redis://:word@host:6379/0", "redis://***@host:6379/0"),
        ("https://host/v1?api_key=abc&x=1", "https://host/v1?api_key=***&x=1"),
        ("--api-key=abc", "--api-key=***"),
        ("--openai-key=abc", "--openai-key=***"),
        ("OPENAI_KEY=abc", "OPENAI_KEY=***"),
        ("Service(token='abc', size=3)", "Service(token=***, size=3)"),
        ('{"password": "a b", "user": "me"}', '{"password": ***, "user": "me"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("sqlite:///runs.db", "sqlite:///runs.db"),
        ("LocalBackend(pack_tokens=2048, max_tokens=7)", "LocalBackend(pack_tokens=2048, max_tokens=7)"),
        ("Judge(api_key=None)", "Judge(api_key=None)"),
    ],
)
def test_secrets_are_masked_and_the_rest_is_as_it_was(text: str, kept: str) -> None:
    assert mask(text) == kept


@pytest.mark.parametrize("text", ["a", "://", "token ", "token='", "api_key", "bearer ", "-key"])
def test_a_text_of_strangers_is_masked_at_once(text: str) -> None:
    """Searching each word again from each of its letters would take minutes."""
    assert mask(text * 200_000)


def test_a_command_line_is_masked_after_a_flag_too() -> None:
    given = ["python", "job.py", "--store", "redis://:pw@h", "--api-key", "pw", "--steps", "3"]
    assert list(masked(given)) == [*given[:3], "redis://***@h", "--api-key", "***", "--steps", "3"]


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("postgresql://me:secret@h/d", "postgresql://me@h/d"),
        ("postgresql://me:secret@a:1,b:2/d?schema=x", "postgresql://me@a:1,b:2/d?schema=x"),
        ("postgresql://me:secret/secret:secret@h/d", "postgresql://me@h/d"),
        ("postgresql://me:secret?secret@h/d?x=1", "postgresql://me@h/d?x=1"),
        ("postgresql://me:12?secret@h/d", "postgresql://me@h/d"),
        ("postgresql://me:secret@secret@h/d", "postgresql://me@h/d"),
        ("postgresql://h/d?user=me&password=secret&x=1", "postgresql://h/d?user=me&x=1"),
        ("postgresql:///d?host=/run/pg&password=secret", "postgresql:///d?host=/run/pg"),
        ("postgresql://h/d?sslpassword=secret", "postgresql://h/d"),
        ("postgresql://h:5432/d?options=a@b", "postgresql://h:5432/d?options=a@b"),
        ("rediss://u:secret@h:1/0?prefix=a:&ssl_password=secret", "rediss://u@h:1/0?prefix=a:"),
        ("redis://:secret@h:6379/0", "redis://h:6379/0"),
        ("redis://h", "redis://h"),
        ("sqlite:///home/a:b@c/runs.db", "sqlite:///home/a:b@c/runs.db"),
        ("memory://", "memory://"),
        ("http://:secret@h:8100", "http://h:8100"),
        ("https://secret@h/api", "https://h/api"),
        ("https://me:secret@h", "https://h"),
    ],
)
def test_the_url_of_a_store_says_where_it_is_and_not_its_password(store: str, shown: str) -> None:
    assert without_password(store) == shown
    assert without_password(shown) == shown


def test_all_but_the_password_of_a_postgresql_url_is_understood_as_before() -> None:
    url = "postgresql://me:p%40ss%2Fw@a:1,b:2/d?target_session_attrs=any&connect_timeout=3"
    given = conninfo_to_dict(url)
    assert given.pop("password") == "p@ss/w"
    assert conninfo_to_dict(without_password(url)) == given


def test_names_tell_secrets_from_settings() -> None:
    assert all(map(is_secret, ("HF_TOKEN", "OPENAI_API_KEY", "PGPASSWORD", "VLLM_API_KEY", "client_secret")))
    assert not any(map(is_secret, ("HF_HOME", "TOKENIZERS_PARALLELISM", "max_tokens", "VLLM_LOGGING_LEVEL")))
