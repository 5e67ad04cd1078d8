//! Balance and conversion choose block groups and move their content. Removing and shrinking a
//! device moves the content off the device.
//!
//! # Invariants
//!
//! - **B1** Groups that will change their profile, or leave a device, are read-only from the
//!   beginning. So content that is moved out of one such group never gets space in another such
//!   group.

use buttress_format::{BlockGroupFlags, Chunk, DeviceId, Logical, Profile};
use buttress_space::SpaceKind;

use buttress_txn::{Error, Result};

use crate::bound::name;
use crate::{Maintenance, Users};

/// Selects groups of a kind, by the conditions of `btrfs balance`. A condition that is `None`
/// selects all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Groups with one of these profiles.
    pub profiles: Option<Vec<Profile>>,
    /// Percent in use, as a lower and an upper limit. The upper limit is excluded, unless it is
    /// 100. If the upper limit is 0, only empty groups are selected.
    pub usage: Option<(u64, u64)>,
    /// Groups with a stripe on this device.
    pub devid: Option<DeviceId>,
    /// Groups with a byte in this range of addresses, the end excluded.
    pub vrange: Option<(u64, u64)>,
    /// Groups with a stripe in this range of a device, the end excluded.
    pub drange: Option<(u64, u64)>,
    /// The least and the greatest number of stripes, both included.
    pub stripes: Option<(u64, u64)>,
    /// The maximum number of groups.
    pub limit: Option<u64>,
    /// The profile to convert the groups to.
    pub convert: Option<Profile>,
    /// With `convert`: skip the groups that have this profile already.
    pub soft: bool,
}

/// The groups to balance, by a filter for each kind of block group. Groups of a kind without a
/// filter stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalanceOptions {
    /// Data.
    pub data: Option<Filter>,
    /// Metadata.
    pub metadata: Option<Filter>,
    /// System.
    pub system: Option<Filter>,
}

/// The progress of a balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceProgress {
    /// Groups that were chosen.
    pub expected: u64,
    /// Groups that were emptied.
    pub completed: u64,
    /// Groups that were looked at.
    pub considered: u64,
    /// Bytes in use in the groups that were chosen, one copy counted.
    pub bytes: u64,
    /// Bytes moved.
    pub moved: u64,
    /// Whether the balance was told to stop before its end.
    pub is_paused: bool,
}

impl Filter {
    fn takes(&self, chunk: &Chunk, used: u64) -> bool {
        let profile = Profile::of(chunk.flags);
        let within = |(low, high): (u64, u64), value: u64| value >= low && value <= high;
        let meets = |(low, high): (u64, u64), from: u64, len: u64| {
            from < high && from.saturating_add(len) > low
        };
        let here = |stripe: &&buttress_format::Stripe| {
            self.devid.is_none_or(|id| stripe.device == id)
                && self.drange.is_none_or(|r| meets(r, stripe.offset, chunk.stripe_bytes()))
        };
        let percent = |(low, high): (u64, u64)| {
            let share = u128::from(used) * 100;
            let len = u128::from(chunk.len);
            let below = if high >= 100 { true } else { share < u128::from(high.max(1)) * len };
            (if high == 0 { used == 0 } else { below }) && share >= u128::from(low) * len
        };
        self.profiles.as_ref().is_none_or(|list| profile.is_some_and(|p| list.contains(&p)))
            && self.usage.is_none_or(percent)
            && self.stripes.is_none_or(|range| within(range, chunk.stripes.len() as u64))
            && self.vrange.is_none_or(|range| meets(range, chunk.logical.0, chunk.len))
            && chunk.stripes.iter().any(|stripe| here(&stripe))
            && !(self.soft && self.convert.is_some() && self.convert == profile)
    }
}

impl BalanceOptions {
    /// Balances all groups, and keeps their profiles.
    #[must_use]
    pub fn full() -> Self {
        let any = Some(Filter::default());
        Self { data: any.clone(), metadata: any.clone(), system: any }
    }

    fn of_kind(&self, kind: BlockGroupFlags) -> Option<&Filter> {
        // The filter for data is also used for mixed groups.
        if kind.has(BlockGroupFlags::DATA) {
            self.data.as_ref()
        } else if kind.has(BlockGroupFlags::METADATA) {
            self.metadata.as_ref()
        } else {
            self.system.as_ref()
        }
    }
}

impl Maintenance {
    /// Moves the content of the chosen groups to other groups, and removes the chosen groups. The
    /// caller has checked that the devices can hold the profiles.
    pub(crate) fn move_chosen(
        &self,
        options: &BalanceOptions,
        users: &dyn Users,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        let kinds = [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System];
        let target = |kind| Some((kind, Some(options.of_kind(kind)?.convert?)));
        let mut targets: Vec<_> = kinds
            .into_iter()
            .filter_map(|kind| target(self.engine().storage().kind_flags(kind)))
            .collect();
        let mut progress = BalanceProgress::default();
        let chosen = self.choose(options, &mut progress);
        self.engine().storage().set_targets(&targets);
        let outcome = self
            .room_for(&chosen)
            .and_then(|()| self.move_groups(&chosen, &mut progress, users, watch));
        targets.iter_mut().for_each(|(_, profile)| *profile = None);
        self.engine().storage().set_targets(&targets);
        outcome.map(|()| progress)
    }

    fn choose(
        &self,
        options: &BalanceOptions,
        progress: &mut BalanceProgress,
    ) -> Vec<(Logical, bool)> {
        let mut chosen = Vec::new();
        let mut left: [u64; 8] = [u64::MAX; 8];
        for kind in [1, 2, 4, 5] {
            let filter = options.of_kind(BlockGroupFlags(kind));
            left[kind as usize] = filter.and_then(|f| f.limit).unwrap_or(u64::MAX);
        }
        for group in self.engine().storage().space().groups().iter() {
            let Some(chunk) = self.volume().chunk_at(group.start()) else { continue };
            let Some(filter) = options.of_kind(chunk.flags.kind()) else { continue };
            progress.considered += 1;
            let left = &mut left[chunk.flags.kind().0 as usize & 7];
            if *left > 0 && filter.takes(&chunk, group.used()) {
                *left -= 1;
                progress.expected += 1;
                progress.bytes += group.used();
                chosen.push((group.start(), filter.convert.is_some()));
            }
        }
        chosen
    }

    /// For system space and for metadata: makes a chunk if all groups of that kind would be
    /// emptied. Without this chunk, a lack of space would first appear in a commit, which must not
    /// fail. Data needs no such chunk: a move of data may fail without harm, and may fill groups
    /// that stay.
    fn room_for(&self, chosen: &[(Logical, bool)]) -> Result<()> {
        for kind in [SpaceKind::System, SpaceKind::Metadata] {
            let is_mine = |(start, converts): &&(Logical, bool)| {
                *converts
                    && self
                        .engine()
                        .storage()
                        .space()
                        .group_at(*start)
                        .is_some_and(|group| group.kind() == kind)
            };
            if chosen.iter().any(|one| is_mine(&one)) && !self.engine().add_chunk(kind)? {
                return Err(Error::NoSpace("metadata in another place"));
            }
        }
        Ok(())
    }

    fn move_groups(
        &self,
        chosen: &[(Logical, bool)],
        progress: &mut BalanceProgress,
        users: &dyn Users,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        // New space for moved data must not be allocated in another chosen group.
        let mut held = Vec::new();
        for (start, converts) in chosen {
            if *converts {
                held.push(self.engine().hold_read_only(*start)?);
            }
        }
        let mut bound = self.loops().begin(name::CHOSEN, chosen.len() as u64);
        for (start, _) in chosen {
            bound.step()?;
            if self.engine().storage().space().group_at(*start).is_none() {
                // The group was empty, and a commit removed it.
                progress.completed += 1;
                continue;
            }
            let mut moved = 0;
            let outcome = self.relocate_group(*start, users, &mut |bytes| {
                moved += bytes;
                let mut now = *progress;
                now.moved += moved;
                watch(&now);
            });
            if matches!(outcome, Err(Error::Stopped)) {
                progress.is_paused = true;
                return Ok(());
            }
            outcome?;
            progress.moved += moved;
            progress.completed += 1;
            if !watch(progress) {
                progress.is_paused = progress.completed < progress.expected;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Moves everything off a part of a device, or off the whole device. No new chunk is put on the
    /// device meanwhile. If the whole device is emptied, no chunk is put on it afterwards.
    ///
    /// # Errors
    ///
    /// As [`balance`](Self::balance); [`Error::Stopped`] when `watch` returned `false`.
    pub fn vacate(
        &self,
        id: DeviceId,
        from: u64,
        users: &dyn Users,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        self.engine().check_writable()?;
        self.expect_no_balance()?;
        self.expect_not_replaced(id)?;
        self.engine().storage().use_device(
            self.engine().commits(),
            self.engine().reservations(),
            id,
            from > 0,
        );
        let filter =
            Filter { devid: Some(id), drange: Some((from, u64::MAX)), ..Filter::default() };
        let some = Some(filter);
        let options = BalanceOptions { data: some.clone(), metadata: some.clone(), system: some };
        if from > 0 {
            self.engine().storage().hide_device(id, from);
        }
        let mut progress = BalanceProgress::default();
        let chosen = self.choose(&options, &mut progress);
        let chosen: Vec<_> = chosen.into_iter().map(|(start, _)| (start, true)).collect();
        let outcome = self
            .room_for(&chosen)
            .and_then(|()| self.move_groups(&chosen, &mut progress, users, watch));
        let outcome = match outcome {
            Ok(()) if progress.is_paused => Err(Error::Stopped),
            other => other,
        };
        if outcome.is_err() {
            self.engine().storage().use_device(
                self.engine().commits(),
                self.engine().reservations(),
                id,
                true,
            );
            self.engine().storage().show_device(self.engine().commits(), id, from);
        }
        outcome.map(|()| progress)
    }
}
