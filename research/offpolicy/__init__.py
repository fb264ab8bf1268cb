"""Costs and savings of off-policy training on the SQL agent: replay, asynchronous collection, staleness."""
