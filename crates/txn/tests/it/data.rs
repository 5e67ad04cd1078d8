//! Data extents: references, checksums, free space, chunks.
