//! A volume of two groups for the model: the parts that `quiesce`, `group_stop`, `group_state` and
//! `guard` need, with the scheduler's locks. Groups have a set of reserved extents, but no search
//! for free extents and no account.

use std::ops::{Deref, DerefMut};

use buttress_format::{Extent, Logical};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize};
use shuttle::sync::{Arc, MutexGuard};

use crate::extent_set::ExtentSet;
use crate::group_state::State;
use crate::guard::Writers;
use crate::size_class::SizeClass;
use crate::{Error, LookupPolicy, SpaceKind};

pub(crate) const SECTOR: u64 = 4096;
const GROUP: u64 = 8 * SECTOR;

#[derive(Debug)]
pub(crate) struct Lock(shuttle::sync::Mutex<State>);

/// Holds the guard of a lock. A wait takes the guard out, and puts it back.
pub(crate) struct RankedGuard<'a>(Option<MutexGuard<'a, State>>);

impl Lock {
    pub(crate) fn lock(&self) -> RankedGuard<'_> {
        RankedGuard(Some(self.0.lock().expect("no poison")))
    }
}

impl RankedGuard<'_> {
    pub(crate) fn wait(&mut self, signal: &shuttle::sync::Condvar) {
        let held = self.0.take().expect("held");
        self.0 = Some(signal.wait(held).expect("no poison"));
    }
}

impl Deref for RankedGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("held")
    }
}

impl DerefMut for RankedGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("held")
    }
}

/// The model has no reservations.
pub(crate) struct SharedAccount;

/// A group as `quiesce` sees it.
#[derive(Debug)]
pub(crate) struct Group {
    slot: usize,
    pub(crate) stopped: AtomicBool,
    pub(crate) writers: AtomicUsize,
    pub(crate) drained: shuttle::sync::Condvar,
    pub(crate) state: Lock,
    /// Whether drains that wait for reserved extents are left asleep.
    pub(crate) silent: bool,
    /// How many threads rely on a drained group.
    pub(crate) quiet: AtomicUsize,
    /// Writers in place at this moment, and ordered extents.
    pub(crate) in_place: AtomicUsize,
    pub(crate) on_the_way: AtomicUsize,
}

impl Group {
    pub(crate) fn start(&self) -> Logical {
        Logical(self.slot as u64 * GROUP)
    }

    pub(crate) fn len(&self) -> u64 {
        GROUP
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    pub(crate) fn kind(&self) -> SpaceKind {
        SpaceKind::Data
    }

    pub(crate) fn change<R>(&self, _: &SharedAccount, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let before = state.reserved.bytes();
        let result = act(&mut state);
        if !self.silent {
            self.wake_drains(&state, before);
        }
        result
    }

    pub(crate) fn stop(&self, account: &SharedAccount) -> Result<(), Error> {
        self.change(account, |state| state.stop_writes());
        Ok(())
    }
}

/// Groups in order.
pub(crate) struct Directory<'a>(&'a [Arc<Group>]);

impl Directory<'_> {
    pub(crate) fn find_whole(&self, extent: Extent) -> Result<&Arc<Group>, Error> {
        let group = self.0.get((extent.start.0 / GROUP) as usize);
        group.ok_or(Error::NoGroup { at: extent.start })
    }
}

/// The first failure that was found, whatever order of threads led to it. It is no part of the
/// model, so the scheduler does not see it.
pub(crate) type Complaint = Arc<std::sync::Mutex<Option<&'static str>>>;

/// The baseline's writer finds its group a second time with this value. In this model the value is
/// the volume.
pub(crate) type Finder = Arc<Space>;

/// A volume as `quiesce` sees it.
pub(crate) struct Space {
    pub(crate) complaint: Complaint,
    pub(crate) groups: [Arc<Group>; 2],
    writers: Arc<Writers>,
    policy: LookupPolicy,
}

impl Space {
    pub(crate) fn new(policy: LookupPolicy, silent: bool, complaint: &Complaint) -> Arc<Self> {
        let group = |slot| {
            let state = State {
                free: None,
                reserved: ExtentSet::default(),
                pinned: ExtentSet::default(),
                freed_unloaded: ExtentSet::default(),
                used: SECTOR,
                read_only: 0,
                class: SizeClass,
                entry: None,
                counted: true,
                removed: false,
            };
            Arc::new(Group {
                slot,
                stopped: AtomicBool::new(false),
                writers: AtomicUsize::new(0),
                drained: shuttle::sync::Condvar::new(),
                state: Lock(shuttle::sync::Mutex::new(state)),
                silent,
                quiet: AtomicUsize::new(0),
                in_place: AtomicUsize::new(0),
                on_the_way: AtomicUsize::new(0),
            })
        };
        let writers = Arc::new(Writers::default());
        let complaint = Complaint::clone(complaint);
        Arc::new(Self { complaint, groups: [group(0), group(1)], writers, policy })
    }

    /// No request waits for space here.
    #[allow(clippy::unused_self, reason = "the code under test calls it")]
    pub(crate) fn serve_freed(&self) {}

    pub(crate) fn group_at(&self, at: Logical) -> Option<Arc<Group>> {
        self.groups.get((at.0 / GROUP) as usize).cloned()
    }

    pub(crate) fn shared_account(&self, _: SpaceKind) -> &'static SharedAccount {
        &SharedAccount
    }

    pub(crate) fn lookup_policy(&self) -> LookupPolicy {
        self.policy
    }

    pub(crate) fn writers_in_place(&self) -> &Arc<Writers> {
        &self.writers
    }

    pub(crate) fn finder(self: &Arc<Self>) -> Option<Finder> {
        Some(Arc::clone(self))
    }

    pub(crate) fn directory(&self) -> Directory<'_> {
        Directory(&self.groups)
    }
}
