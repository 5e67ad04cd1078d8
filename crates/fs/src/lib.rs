//! Names, inodes, subvolumes: a btrfs volume as a library.
