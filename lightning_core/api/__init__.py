"""The store over HTTP: for workers and clients in any language, on any machine."""
