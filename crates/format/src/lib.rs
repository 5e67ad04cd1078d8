//! The btrfs disk format as checked types: bytes and their meaning, no I/O.
