"""Read and check what an index is built of: chunks, mappings, tables, JSON lines, Parquet and folders."""
