"""The parts of a score, one file each.

Every module of this folder is imported, so that a new stage is only a new file. The stages with a
`Stage.order` belong to the weighting ``pivoted``, and run in this order.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from relevance_gen.retrieval.ranking.stage import Stage


def _stage_classes() -> list[type[Stage]]:
    """Return the classes of the modules in this folder that have an order, sorted by it."""
    class_of_order: dict[float, type[Stage]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Stage) and value.order is not None:
                class_of_order[value.order] = value
    return [class_of_order[order] for order in sorted(class_of_order)]


STAGE_CLASSES: Final = _stage_classes()
