//! Bytes of files: delayed allocation, read, write, writeback, holes, preallocation.
