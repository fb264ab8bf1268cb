"""The three prompts of the SQL agent, apart from the graph so that they can be read and reused alone."""

Messages = list[dict[str, str]]


def write_prompt(schema: str, question: str) -> Messages:
    """Ask for a first query."""
    return _messages("Write one SQLite query.", f"{schema}\nQuestion: {question}")


def check_prompt(question: str, sql: str, feedback: str) -> Messages:
    """Ask whether the result can stand; the reply is "ok" or "rewrite"."""
    task = "Check the result. Reply ok or rewrite."
    return _messages(task, f"Question: {question}\nSQL: {sql}\nResult: {feedback}")


def rewrite_prompt(schema: str, question: str, sql: str, feedback: str) -> Messages:
    """Ask for a better query, given the one that failed and what the database said about it."""
    task = "Rewrite the SQLite query."
    return _messages(task, f"{schema}\nQuestion: {question}\nSQL: {sql}\nResult: {feedback}")


def _messages(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]
