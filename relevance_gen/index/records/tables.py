"""Read the rows of tables: data frames and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from relevance_gen.errors import InvalidRequestError, to_install

_BATCH_ROWS: Final = 256
"""Number of rows that are converted to Python objects at once."""
_PANDAS_INDEX_PREFIX: Final = "__index_level_"


def is_table(values: object) -> bool:
    """Return whether a value is a table by Arrow's interface, as data frames are.

    A single column is not a table.
    """
    has_columns = hasattr(values, "columns") or hasattr(values, "schema")
    return hasattr(values, "__arrow_c_stream__") and has_columns


def rows_of(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as mappings from column names to Python values.

    Raises:
        InvalidRequestError: pyarrow is not installed, or a row has a value that Python cannot
            represent.
    """
    try:
        import pyarrow
    except ImportError:
        raise InvalidRequestError(f"tables need pyarrow: {to_install('data')}") from None
    n_rows = 0
    try:
        for batch in pyarrow.RecordBatchReader.from_stream(table):
            for first_row in range(0, batch.num_rows, _BATCH_ROWS):
                for row in batch.slice(first_row, _BATCH_ROWS).to_pylist():
                    yield _without_pandas_index(row)
                    n_rows += 1
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        raise InvalidRequestError(
            f"a table must be readable, but row {n_rows} or a row soon after it is not: {error}"
        ) from None


def _without_pandas_index(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(_PANDAS_INDEX_PREFIX)}
