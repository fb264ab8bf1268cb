"""The console: a web page on what runs have left in their stores, live while they go on."""
