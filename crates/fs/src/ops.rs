//! What can be done with names and inodes, one file an operation.
