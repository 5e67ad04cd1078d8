//! The FUSE door: protocol in, calls to the library out.
