//! One device: read, write, flush, discard; files, block devices and memory.
