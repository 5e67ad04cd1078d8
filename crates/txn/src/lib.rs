//! Transactions: handles, delayed references, commit. Records what space decided.
