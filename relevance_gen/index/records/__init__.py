"""Read and check the sources of an index: chunks, mappings, tables, JSON, Parquet, folders."""
