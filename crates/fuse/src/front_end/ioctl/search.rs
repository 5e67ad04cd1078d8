//! Items of trees, as Linux shows them to root.
//!
//! # Invariants
//!
//! - **SE1** The first page of a walk shows all earlier changes of programs: a commit comes first.
//!   Further pages show the commit of the first page, or a later commit.
//! - **SE2** A page goes on with a walk only if the same thread asks for the items after the walk's
//!   last page. That page must have been full. Any other command of btrfs ends the walks of its
//!   thread. So a program that asks again and again for new subvolumes sees them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::rank::{Rank, Ranked};
use buttress_fs::{Generation, Key, Kind, Searched, TreeId};
use buttress_protocol::btrfs::{SearchKey, SearchPage};

use super::super::rights::Rights;
use super::super::{Caller, FrontEnd, Node, refuse};
use super::expect_admin;
use crate::errno::Answer;

/// The most walks that are remembered. A walk that was forgotten costs one more commit.
const WALKS_MAX: usize = 16;
/// A walk that rests for longer than this begins with a commit again.
const REST_MAX: Duration = Duration::from_secs(5);

/// A walk of a thread over a tree, after a full page.
#[derive(Clone, Copy, Debug)]
struct Walk {
    task: u32,
    tree: TreeId,
    to: Key,
    generations: (Generation, Generation),
    /// The key of the last item that was shown.
    last: Key,
    at: Instant,
}

/// The walks that may go on (SE2), those with the oldest pages first.
#[derive(Debug)]
pub(crate) struct Walks(Ranked<VecDeque<Walk>>);

impl Walks {
    pub(crate) fn new() -> Self {
        Self(Ranked::new(Rank::Leaf, VecDeque::new()))
    }

    /// Whether a search goes on with a remembered walk. Forgets that walk.
    fn take(&self, task: u32, searched: &Searched, now: Instant) -> bool {
        let mut walks = self.0.lock();
        let found = walks.iter().position(|walk| {
            (walk.task, walk.tree, walk.to) == (task, searched.tree, searched.keys.1)
                && walk.generations == searched.generations
                && follows(walk.last, searched.keys.0)
        });
        let Some(walk) = found.and_then(|at| walks.remove(at)) else { return false };
        now.saturating_duration_since(walk.at) <= REST_MAX
    }

    /// Remembers a walk with a full page that ends with `last`.
    fn note(&self, task: u32, searched: &Searched, last: Key, now: Instant) {
        // Without the number of the asking thread, any thread could go on with the walk.
        if task == 0 {
            return;
        }
        let mut walks = self.0.lock();
        while walks.len() >= WALKS_MAX {
            walks.pop_front();
        }
        let Searched { tree, keys: (_, to), generations } = *searched;
        walks.push_back(Walk { task, tree, to, generations, last, at: now });
    }

    /// Ends the walks of a thread.
    pub(super) fn end_of(&self, task: u32) {
        self.0.lock().retain(|walk| walk.task != task);
    }
}

/// Whether a program may ask for `from` next after it was shown `last`. Programs add one to the
/// offset, and carry to the kind and the object in several ways.
fn follows(last: Key, from: Key) -> bool {
    let Key { objectid, kind: Kind(kind), offset } = last;
    let next = [
        offset.checked_add(1).map(|offset| (objectid, kind, offset)),
        kind.checked_add(1).map(|kind| (objectid, kind, 0)),
        objectid.checked_add(1).map(|objectid| (objectid, 0, 0)),
    ];
    next.contains(&Some((from.objectid, from.kind.0, from.offset)))
}

impl FrontEnd {
    /// Shows items of a tree. Earlier changes of programs are committed first, since trees change
    /// by commits alone (SE1).
    pub(super) fn search(
        &self,
        caller: Caller,
        node: &Node,
        key: SearchKey,
        argument: &[u8],
    ) -> Answer<Vec<u8>> {
        expect_admin(&Rights::of(caller))?;
        let tree = if key.tree == 0 { node.inode.id().tree } else { TreeId(key.tree) };
        let mut page = SearchPage::new(argument, &key)?;
        let whole = |(object, kind, offset)| Key::new(object, Kind(kind), offset);
        let searched = Searched {
            tree,
            keys: (whole(key.from), whole(key.to)),
            generations: (Generation(key.generations.0), Generation(key.generations.1)),
        };
        if !self.walks.take(caller.task, &searched, clock::now()) {
            self.fs.commit_or_keep_last().map_err(refuse)?;
        }
        let (mut last, mut is_full) = (None, false);
        let mut add = |item: buttress_fs::TreeItem<'_>| {
            let Key { objectid, kind, offset } = item.key;
            let count = page.count();
            is_full = !page.add((objectid, kind.0, offset), item.generation.0, item.bytes);
            if page.count() > count {
                last = Some(item.key);
            }
            !is_full
        };
        self.fs.search(searched, &mut add).map_err(refuse)?;
        // A program that asks for a single item does not walk: its next search is unrelated.
        if let Some(last) = last.filter(|_| is_full && key.count > 1) {
            self.walks.note(caller.task, &searched, last, clock::now());
        }
        Ok(page.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: TreeId = TreeId::ROOT;
    const TO: Key = Key::new(u64::MAX, Kind(u8::MAX), u64::MAX);

    fn searched(from: Key) -> Searched {
        Searched {
            tree: TREE,
            keys: (from, TO),
            generations: (Generation(0), Generation(u64::MAX)),
        }
    }

    /// SE2: only a search after the last item goes on with a walk, once, by the same thread, and
    /// soon.
    #[test]
    fn walk_goes_on_where_its_last_page_ended() {
        let (walks, now) = (Walks::new(), clock::now());
        let (first, last) = (searched(Key::MIN), Key::new(256, Kind(132), 7));
        let next = searched(Key::new(256, Kind(132), 8));
        assert!(!walks.take(1, &first, now));
        walks.note(1, &first, last, now);
        assert!(!walks.take(1, &first, now), "from the start");
        assert!(!walks.take(2, &next, now), "another thread");
        assert!(!walks.take(1, &searched(Key::new(256, Kind(132), 9)), now), "further on");
        assert!(walks.take(1, &next, now));
        assert!(!walks.take(1, &next, now), "a second time");
        for from in [Key::new(256, Kind(133), 0), Key::new(257, Kind(0), 0)] {
            walks.note(1, &first, last, now);
            assert!(walks.take(1, &searched(from), now), "{from:?}");
        }
        walks.note(1, &first, last, now);
        assert!(!walks.take(1, &next, now + REST_MAX * 2), "later");
        walks.note(0, &first, last, now);
        assert!(!walks.take(0, &next, now), "the kernel does not say which thread asks");
    }

    /// Above the limit, the oldest walks are forgotten.
    #[test]
    fn walks_are_bounded() {
        let (walks, now) = (Walks::new(), clock::now());
        let first = searched(Key::MIN);
        for task in 1..100 {
            walks.note(task, &first, Key::MIN, now);
        }
        assert_eq!(walks.0.lock().len(), WALKS_MAX);
        let next = searched(Key::new(0, Kind(0), 1));
        assert!(walks.take(99, &next, now) && !walks.take(1, &next, now));
    }
}
