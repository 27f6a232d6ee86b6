"""Search and generation on several machines: `ClusterIndex` and `ClusterRunner` on a Ray cluster.

This is the only package that imports `ray`, which the extra ``cluster`` installs. Ray is imported
when one of these classes is used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from relevance_gen.errors import to_install

if TYPE_CHECKING:
    from relevance_gen.cluster.generation.runner import ClusterRunner
    from relevance_gen.cluster.search.index import ClusterIndex

# Ray reads these when it is imported. Without the second variable, Ray ends every process a minute
# after the cluster's head has died. Without the third variable, the actors of a cluster that starts
# here have a lower priority than other processes.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(10 * 365 * 24 * 3600))
os.environ.setdefault("RAY_worker_niceness", "0")
__all__ = ["ClusterIndex", "ClusterRunner"]

_LOADED_WHEN_USED = {
    "ClusterIndex": "relevance_gen.cluster.search.index",
    "ClusterRunner": "relevance_gen.cluster.generation.runner",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            f"{name} needs Ray: {to_install('cluster')}", name="ray"
        ) from None
