//! Many devices as one logical address space: chunk map, profiles, mirrors, repair, superblocks.
