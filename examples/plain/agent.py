"""An agent in one file: write an SQL query, run it, and rewrite it while the database does not like it.

    echo '{"question": "Which boats are fast?", "database": "harbour.sqlite"}' | python agent.py

Prints {"sql": ..., "rewrites": ...}. It needs Python and nothing else. The model is SQL_MODEL at
OPENAI_BASE_URL, with the key OPENAI_API_KEY; REWRITER_BASE_URL sends the rewriter elsewhere.
"""

import http.client
import json
import os
import re
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

MAX_REWRITES = 2
TIME_LIMIT = 2.0
"""Seconds after which a query is interrupted."""
PATIENCE = 300.0
"""Seconds to wait for the model."""
COMPARED = re.compile(r"""\b(\w+)\s*(?:=|\bLIKE\b|\bIN\b\s*\()\s*'""", re.IGNORECASE)
"""A column that a query compares with a text."""


def main() -> None:
    task = json.load(sys.stdin)
    with open_database(task["database"]) as connection:
        answer = solve(task["question"], connection)
    json.dump(answer, sys.stdout)


def solve(question: str, connection: sqlite3.Connection) -> dict[str, object]:
    """The final query, and how often it was rewritten."""
    writer = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    rewriter = os.environ.get("REWRITER_BASE_URL", writer)
    asked = f"{describe_schema(connection)}\nQuestion: {question}"
    sql = clean_sql(chat(writer, "Write one SQLite query.", asked))
    for rewrites in range(MAX_REWRITES):
        feedback = run_query(connection, sql)
        if feedback.startswith("Rows"):
            return {"sql": sql, "rewrites": rewrites}
        failed = f"{asked}\nSQL: {sql}\nResult: {feedback}"
        sql = clean_sql(chat(rewriter, "Rewrite the SQLite query.", failed))
    return {"sql": sql, "rewrites": MAX_REWRITES}


def chat(base_url: str, system: str, user: str) -> str:
    """The model's reply. Ends the program if the endpoint refuses."""
    url = urlsplit(base_url)
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    model = os.environ.get("SQL_MODEL", "gpt-5-mini")
    body = json.dumps({"model": model, "messages": messages, "max_completion_tokens": 64})
    headers = {
        "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}",
        "Content-Type": "application/json",
    }
    with closing(connect(url.netloc, timeout=PATIENCE)) as connection:
        connection.request("POST", f"{url.path}/chat/completions", body, headers)
        reply = connection.getresponse()
        text = reply.read().decode()
    if reply.status != 200:
        sys.exit(f"{base_url} answered {reply.status}: {text}")
    return str(json.loads(text)["choices"][0]["message"]["content"] or "")


def clean_sql(reply: str) -> str:
    """The query in a reply, without a Markdown fence or a closing semicolon."""
    fenced = re.search(r"```(?:sql\w*)?\s*(.*?)```", reply, re.DOTALL | re.IGNORECASE)
    return (fenced.group(1) if fenced else reply).strip().rstrip(";").strip()


def open_database(path: str) -> closing[sqlite3.Connection]:
    """A read-only connection to the file and to no other; a missing file is an error."""
    connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
    # read-only is the file alone: ATTACH and VACUUM INTO would still write others
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return closing(connection)


def describe_schema(connection: sqlite3.Connection) -> str:
    """One line for each table."""
    return "\n".join(f"Table {table}({', '.join(names)})" for table, names in read_tables(connection).items())


def run_query(connection: sqlite3.Connection, sql: str) -> str:
    """Runs the query; returns the number of rows, the error, or values that would match."""
    deadline = time.monotonic() + TIME_LIMIT
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
    try:
        rows = connection.execute(sql).fetchmany(1000)
    except (sqlite3.Error, sqlite3.Warning, ValueError, UnicodeEncodeError) as error:
        return f"Error: {error}"
    finally:
        connection.set_progress_handler(None, 0)
    if any(value is not None for row in rows for value in row):
        return f"Rows: {len(rows)}"
    return "No rows." + "".join(explain(connection, name) for name in dict.fromkeys(COMPARED.findall(sql)))


def explain(connection: sqlite3.Connection, column: str) -> str:
    """The values that a column has, if there is such a column."""
    for table, names in read_tables(connection).items():
        if column in names:
            query = f'SELECT DISTINCT "{column}" FROM "{table}" ORDER BY 1 LIMIT 6'
            values = ", ".join(f"'{value}'" for (value,) in connection.execute(query))
            return f" {column} is {values}."
    return ""


def read_tables(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table, in the order of creation."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
    columns = "SELECT name FROM pragma_table_info(?)"
    return {table: [name for (name,) in connection.execute(columns, (table,))] for (table,) in tables}


if __name__ == "__main__":
    main()
