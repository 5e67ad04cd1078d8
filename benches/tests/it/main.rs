//! What may not grow with the number of block groups, counted on real volumes.

mod groups;
