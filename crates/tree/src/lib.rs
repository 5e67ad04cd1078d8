//! Immutable b-trees, the overlay above them, and the merge of one into the other.
