"""The client programs run in the interpreter of their package, not in pytest."""

collect_ignore_glob = ["*_client.py"]
