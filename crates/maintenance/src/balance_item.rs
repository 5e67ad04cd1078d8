//! The balance item on disk. It exists from the beginning to the end of a balance. From the options
//! in the item the next mount, by this program or Linux, can resume the balance.
//!
//! # Invariants
//!
//! - **K1** While groups are moved, the item exists. It is removed when the balance is done, was
//!   cancelled or failed. If the item exists after a crash or a pause, its balance can be resumed.
//! - **K2** A resumed balance does not move content again. For this purpose it skips groups that
//!   are nearly full, or that have their new profile already.

use buttress_format::{BalanceArgs, BalanceItem, BlockGroupFlags, DeviceId, Profile, TreeId};

use buttress_txn::{Cost, Error, ReserveClass, Result, View};

use crate::{BalanceOptions, BalanceProgress, Filter, Maintenance, Users};

/// A resumed balance skips groups with more than this percentage in use, as Linux does.
const RESUME_USAGE: u64 = 90;

fn bits(profile: Profile) -> u64 {
    match profile {
        Profile::Single => BalanceArgs::SINGLE,
        other => other.flags().0,
    }
}

fn profiles(bits: u64) -> Vec<Profile> {
    let has = |profile: &Profile| bits & self::bits(*profile) != 0;
    Profile::ALL.into_iter().filter(has).collect()
}

fn low(value: u64) -> u64 {
    value & u64::from(u32::MAX)
}

fn pair((from, to): (u64, u64)) -> u64 {
    let half = |value: u64| value.min(u64::from(u32::MAX));
    half(from) | half(to) << 32
}

impl Filter {
    fn args(&self) -> BalanceArgs {
        let mut args = BalanceArgs::default();
        let mut set = |flag: u64, is_set: bool| args.flags |= if is_set { flag } else { 0 };
        set(BalanceArgs::PROFILES, self.profiles.is_some());
        set(BalanceArgs::USAGE_RANGE, self.usage.is_some_and(|(from, _)| from > 0));
        set(BalanceArgs::USAGE, self.usage.is_some_and(|(from, _)| from == 0));
        set(BalanceArgs::DEVID, self.devid.is_some());
        set(BalanceArgs::DRANGE, self.drange.is_some());
        set(BalanceArgs::VRANGE, self.vrange.is_some());
        set(BalanceArgs::LIMIT, self.limit.is_some());
        set(BalanceArgs::STRIPES_RANGE, self.stripes.is_some());
        set(BalanceArgs::CONVERT, self.convert.is_some());
        set(BalanceArgs::SOFT, self.soft);
        args.profiles = self.profiles.iter().flatten().fold(0, |sum, one| sum | bits(*one));
        args.usage = match self.usage {
            Some((0, to)) => to.min(100),
            Some((from, to)) => pair((from, to.min(100))),
            None => 0,
        };
        args.devid = self.devid.map_or(0, |id| id.0);
        args.drange = self.drange.unwrap_or_default();
        args.vrange = self.vrange.unwrap_or_default();
        args.limit = self.limit.unwrap_or(0);
        let stripes = pair(self.stripes.unwrap_or_default());
        args.stripes = (stripes as u32, (stripes >> 32) as u32);
        args.target = self.convert.map_or(0, bits);
        args
    }

    fn of(args: &BalanceArgs) -> Self {
        let has = |flag: u64| args.flags & flag != 0;
        let usage = if has(BalanceArgs::USAGE_RANGE) {
            Some((low(args.usage), args.usage >> 32))
        } else {
            has(BalanceArgs::USAGE).then_some((0, args.usage))
        };
        let limit = if has(BalanceArgs::LIMIT_RANGE) {
            Some(args.limit >> 32)
        } else {
            has(BalanceArgs::LIMIT).then_some(args.limit)
        };
        let (from, to) = args.stripes;
        Self {
            profiles: has(BalanceArgs::PROFILES).then(|| profiles(args.profiles)),
            usage,
            devid: has(BalanceArgs::DEVID).then_some(DeviceId(args.devid)),
            vrange: has(BalanceArgs::VRANGE).then_some(args.vrange),
            drange: has(BalanceArgs::DRANGE).then_some(args.drange),
            stripes: has(BalanceArgs::STRIPES_RANGE).then_some((from.into(), to.into())),
            limit,
            convert: profiles(args.target).first().copied().filter(|_| has(BalanceArgs::CONVERT)),
            soft: has(BalanceArgs::SOFT),
        }
    }

    /// The filter for a resumed balance (K2).
    fn resumed(mut self) -> Self {
        if self.convert.is_some() {
            self.soft = true;
        } else if self.usage.is_none() {
            self.usage = Some((0, RESUME_USAGE));
        }
        self
    }
}

impl BalanceOptions {
    /// The item that stores these options on disk.
    #[must_use]
    pub fn item(&self) -> BalanceItem {
        let flag = |filter: &Option<Filter>, flag| if filter.is_some() { flag } else { 0 };
        let args = |filter: &Option<Filter>| filter.as_ref().map(Filter::args).unwrap_or_default();
        let mut flags = flag(&self.data, BalanceItem::DATA)
            | flag(&self.metadata, BalanceItem::METADATA)
            | flag(&self.system, BalanceItem::SYSTEM);
        let converts = |filter: &Option<Filter>| {
            filter.as_ref().is_some_and(|filter| filter.convert.is_some())
        };
        if converts(&self.metadata) || converts(&self.system) {
            // Before the balance began, the caller confirmed that it may leave fewer copies.
            flags |= BalanceItem::FORCE;
        }
        BalanceItem {
            flags,
            data: args(&self.data),
            metadata: args(&self.metadata),
            system: args(&self.system),
        }
    }

    /// The options that an item on disk contains.
    #[must_use]
    pub fn of(item: &BalanceItem) -> Self {
        let filter = |flag, args| (item.flags & flag != 0).then(|| Filter::of(args));
        Self {
            data: filter(BalanceItem::DATA, &item.data),
            metadata: filter(BalanceItem::METADATA, &item.metadata),
            system: filter(BalanceItem::SYSTEM, &item.system),
        }
    }

    fn resumed(self) -> Self {
        Self {
            data: self.data.map(Filter::resumed),
            metadata: self.metadata.map(Filter::resumed),
            system: self.system.map(Filter::resumed),
        }
    }

    /// The kinds to convert, each with its new profile.
    pub(crate) fn targets(&self) -> impl Iterator<Item = (BlockGroupFlags, Profile)> + '_ {
        let kinds = [
            (BlockGroupFlags::DATA, &self.data),
            (BlockGroupFlags::METADATA, &self.metadata),
            (BlockGroupFlags::SYSTEM, &self.system),
        ];
        kinds.into_iter().filter_map(|(kind, filter)| Some((kind, filter.as_ref()?.convert?)))
    }
}

/// The balance that the volume's balance item describes.
pub(crate) fn kept(view: &View) -> Result<Option<BalanceOptions>> {
    let key = BalanceItem::KEY;
    let Some(bytes) = view.get(TreeId::ROOT, &key)? else { return Ok(None) };
    let item = BalanceItem::parse(&bytes).map_err(|source| Error::Item {
        tree: TreeId::ROOT,
        key,
        source,
    })?;
    Ok(Some(BalanceOptions::of(&item)))
}

impl Maintenance {
    /// The balance that this program or Linux began and did not end.
    ///
    /// # Errors
    ///
    /// When the root tree cannot be read, or the item is invalid.
    pub fn paused_balance(&self) -> Result<Option<BalanceOptions>> {
        kept(&self.engine().view())
    }

    pub(crate) fn expect_no_balance(&self) -> Result<()> {
        if self.paused_balance()?.is_some() {
            return Err(Error::Busy("a balance is paused: resume it, or cancel it"));
        }
        Ok(())
    }

    fn keep_balance(&self, options: Option<&BalanceOptions>) -> Result<()> {
        let cost = Cost::of(2, 2 * BalanceItem::LEN as u32);
        let class = if options.is_some() { ReserveClass::Normal } else { ReserveClass::Free };
        let handle = self.engine().begin(self.engine().reserve(cost, class)?);
        match options {
            Some(options) => {
                handle.put(TreeId::ROOT, BalanceItem::KEY, options.item().to_bytes());
            }
            None => handle.delete(TreeId::ROOT, BalanceItem::KEY),
        }
        drop(handle);
        self.engine().commit().map(drop)
    }

    /// Moves the contents of the chosen groups to other groups, and removes the chosen groups.
    /// `watch` is called with the progress. If it returns `false`, the balance pauses after the
    /// current group. In that case the progress has `is_paused`, and the item stays on disk, as
    /// after [`stop_moving`](Self::stop_moving).
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`], also if there are too few devices for a profile; [`Error::Busy`] if a
    /// balance exists already; errors of moving extents.
    pub fn balance(
        &self,
        options: &BalanceOptions,
        users: &dyn Users,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        self.engine().check_writable()?;
        self.expect_no_balance()?;
        self.expect_profiles(options)?;
        self.keep_balance(Some(options))?;
        self.go_on(options, users, watch)
    }

    /// Resumes a balance that was begun and did not end.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] when no such balance exists; as [`balance`](Self::balance).
    pub fn resume_balance(
        &self,
        users: &dyn Users,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        self.engine().check_writable()?;
        let options = self.paused_balance()?.ok_or(Error::Busy("there is no balance to resume"))?;
        self.expect_profiles(&options)?;
        self.go_on(&options.resumed(), users, watch)
    }

    /// Removes the item of a balance that was begun and did not end. Moved content stays at its new
    /// place.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] when no such balance exists.
    pub fn cancel_balance(&self) -> Result<()> {
        self.engine().check_writable()?;
        self.paused_balance()?.ok_or(Error::Busy("there is no balance to cancel"))?;
        self.keep_balance(None)
    }

    fn go_on(
        &self,
        options: &BalanceOptions,
        users: &dyn Users,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        let outcome = self.move_chosen(options, users, watch);
        if !outcome.as_ref().is_ok_and(|progress| progress.is_paused)
            && self.engine().commits().aborted().is_none()
        {
            self.keep_balance(None)?;
        }
        outcome
    }

    fn expect_profiles(&self, options: &BalanceOptions) -> Result<()> {
        for (kind, profile) in options.targets() {
            let mixed = BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
            let kind = if self.engine().storage().space().is_mixed() { mixed } else { kind };
            if !self.engine().storage().can_have(self.engine().commits(), kind, profile) {
                return Err(Error::NoSpace("a profile that needs more devices, or is not written"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options that were written to an item are read back unchanged.
    #[test]
    fn options_survive_the_disk() {
        let some = Filter {
            profiles: Some(vec![Profile::Single, Profile::Raid10]),
            usage: Some((5, 70)),
            devid: Some(DeviceId(3)),
            vrange: Some((1 << 20, u64::MAX)),
            drange: Some((0, 1 << 30)),
            stripes: Some((2, 4)),
            limit: Some(7),
            convert: Some(Profile::Single),
            soft: true,
        };
        let usage = Filter { usage: Some((0, 50)), ..Filter::default() };
        let options = BalanceOptions { data: Some(some), metadata: Some(usage), system: None };
        let item = BalanceItem::parse(&options.item().to_bytes()).expect("its own bytes");
        assert_eq!(BalanceOptions::of(&item), options);
        let full = BalanceOptions::full();
        assert_eq!(BalanceOptions::of(&full.item()), full);
    }
}
