//! Ground: latches, ranges, aligned buffers, seeded chance. No disk words in here.
