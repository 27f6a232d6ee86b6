"""The clients are programs of their own, run by whatever interpreter has their package, and not by pytest."""

collect_ignore_glob = ["*_client.py"]
