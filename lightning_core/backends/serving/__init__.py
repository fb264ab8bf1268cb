"""Everything an engine of a chat model needs beside sampling: template, text, tool calls, replies in flight.

No torch here, and no engine: the local engine and the servers of vLLM answer through the same code, so that
an app can not tell one from the other.
"""
