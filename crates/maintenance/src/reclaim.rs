//! Emptying block groups that are mostly empty.

use buttress_format::Logical;
use buttress_space::{Group, SpaceKind};
use buttress_txn::{Error, Result};

use crate::{Maintenance, Users};

impl Maintenance {
    /// Relocates data and metadata groups with less than `below` percent in use, the emptiest group
    /// first. Returns the number of removed groups. The contents go to other groups of the same
    /// kind, while there is space. `may` selects the groups. Does nothing while a balance is
    /// paused.
    ///
    /// # Errors
    ///
    /// An error of moving extents, except a lack of space.
    pub fn reclaim_groups(
        &self,
        below: u8,
        users: &dyn Users,
        may: &dyn Fn(Logical) -> bool,
    ) -> Result<u64> {
        self.engine().check_writable()?;
        if self.paused_balance()?.is_some() {
            return Ok(0);
        }
        let mut reclaimed = 0;
        for kind in [SpaceKind::Data, SpaceKind::Metadata] {
            let few = |group: &Group| {
                let (used, len) = (u128::from(group.used()), u128::from(group.len()));
                used > 0 && used * 100 < len * u128::from(below)
            };
            let groups = self.engine().storage().space().groups_of(kind);
            let mut chosen: Vec<(u64, Logical)> = groups
                .iter()
                .filter(|g| few(g) && may(g.start()))
                .map(|g| (g.used(), g.start()))
                .collect();
            chosen.sort_unstable();
            for (_, start) in chosen {
                let Some(group) = self.engine().storage().space().group_at(start) else { continue };
                let (used, free) = (group.used(), group.len() - group.used());
                // The contents cannot go to the free space of the group itself. A new chunk for
                // them would gain nothing.
                let elsewhere =
                    self.engine().storage().space().account(kind).free().saturating_sub(free);
                if elsewhere < used + used / 8 + (1 << 20) {
                    break;
                }
                match self.relocate_group(start, users, &mut |_| ()) {
                    Ok(()) => reclaimed += 1,
                    Err(Error::NoSpace(_)) => break,
                    Err(Error::Stopped) => return Ok(reclaimed),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(reclaimed)
    }
}
