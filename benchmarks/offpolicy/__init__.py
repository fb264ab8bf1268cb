"""What training off-policy costs and saves, on the SQL agent: replay, asynchronous collection, staleness."""
