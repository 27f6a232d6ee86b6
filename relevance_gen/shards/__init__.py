"""An index in a folder or bucket: shard files and a manifest, without Ray."""
