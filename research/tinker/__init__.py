"""The tinker backend beside the local one, through a real server."""
