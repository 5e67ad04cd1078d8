//! Garbage collection: old manifests, unreferenced objects, and objects with little live data.
//!
//! # Invariants
//!
//! - **Q1** A pass deletes an object only if neither this pass nor the preceding pass found a
//!   manifest, pin or lease that needs the object. A pass lists pins and leases after it deletes
//!   manifests. So it sees every pin or lease that was made before the manifest of its commit was
//!   deleted.
//! - **Q2** Manifests are deleted from the lowest number up, and the newest is never deleted.
//! - **Q3** Live sectors are moved by an ordinary write, if they are still at the old place.
//! - **Q4** A pass makes a bounded number of requests. It can stop anywhere. Two passes at once do
//!   no harm, because an unreferenced object stays unreferenced.

use std::collections::BTreeSet;

use crate::chain::Chain;
use crate::core::Core;
use crate::envelope::{Envelope, LEN};
use crate::error::Result;
use crate::map::{Entry, Holds, Missing};
use crate::names::Names;
use crate::units::{CommitNumber, Location, ObjectNumber, SECTOR, Sector};
use crate::{claim, lease, pin, segment};

/// Objects and manifests that one pass deletes.
const DELETIONS: usize = 256;
/// Data objects from which one pass moves live sectors.
const MOVES: usize = 4;
/// The live parts, in thousandths, below which data objects are moved and map objects are
/// rewritten.
const LIVE_MIN: u64 = 500;
const MAP_LIVE_MIN: u64 = 300;

/// The results of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Collected {
    /// Manifests that were deleted.
    pub manifests: u64,
    /// Data and map objects that were deleted.
    pub objects: u64,
    /// Objects of writers that ended before a commit named the objects.
    pub orphans: u64,
    /// Bytes of all these objects.
    pub bytes: u64,
    /// Bytes of sectors that moved out of objects with little live data.
    pub moved_bytes: u64,
}

impl Collected {
    /// Adds the results of another pass.
    pub(crate) fn add(&mut self, other: Self) {
        self.manifests += other.manifests;
        self.objects += other.objects;
        self.orphans += other.orphans;
        self.bytes += other.bytes;
        self.moved_bytes += other.moved_bytes;
    }
}

impl Core {
    /// Makes one pass.
    pub(crate) fn collect(&self) -> Result<Collected> {
        // An unreachable store must not delay the close.
        let chain = &self.chain.brief();
        let mut done = Collected::default();
        let newest = self.last.lock().number;
        // The current time of the store is the time of an object that was just written.
        claim::show(chain, self.volume, self.epoch, &self.writer)?;
        let shown = chain.store.head(&chain.names.writer(self.epoch, &self.writer.id))?;
        let now_ms = shown.map_or(0, |meta| meta.modified_ms);
        let lowest = self.drop_manifests(chain, newest, now_ms, &mut done)?;
        let pins = pin::numbers(chain)?;
        let leases = lease::numbers(chain, now_ms)?;
        let floor = pins.into_iter().chain(leases).fold(lowest, CommitNumber::min);
        let before = std::mem::replace(&mut *self.floor.lock(), floor);
        self.drop_objects(chain, floor.min(before), &mut done)?;
        self.sweep_next(chain, &mut done)?;
        self.move_data(&mut done)?;
        self.rewrite_map()?;
        Ok(done)
    }

    /// Deletes manifests that were superseded more than `min-keep` ago (Q2). Returns the lowest
    /// number that is left.
    fn drop_manifests(
        &self,
        chain: &Chain,
        newest: CommitNumber,
        now_ms: u64,
        done: &mut Collected,
    ) -> Result<CommitNumber> {
        let listed = chain.store.list(&chain.names.folder("manifest"))?;
        let mut listed: Vec<_> = listed
            .into_iter()
            .filter_map(|meta| Some((Names::manifest_number(&meta.name)?, meta.modified_ms)))
            .collect();
        listed.sort_unstable();
        let keep_ms = self.options.min_keep.as_millis() as u64;
        let mut lowest = listed.first().map_or(newest, |(number, _)| *number);
        for pair in listed.windows(2).take(DELETIONS) {
            let [(number, _), (next, superseded_ms)] = *pair else { break };
            if next > newest || superseded_ms + keep_ms >= now_ms || self.is_closing() {
                break;
            }
            chain.store.delete(&chain.names.manifest(number))?;
            done.manifests += 1;
            lowest = next;
        }
        Ok(lowest)
    }

    /// Deletes objects that no commit from `floor` on needs.
    fn drop_objects(&self, chain: &Chain, floor: CommitNumber, done: &mut Collected) -> Result<()> {
        let dead: Vec<(ObjectNumber, Entry)> = {
            let state = self.state.lock();
            let recent: BTreeSet<_> = state.recent.iter().map(|recent| recent.object).collect();
            let is_dead = |number: &ObjectNumber, entry: &Entry| {
                entry.is_dead()
                    && entry.dead_since <= floor
                    && !recent.contains(number)
                    && !state.sealed.contains_key(number)
            };
            let all = state.map.table.entries.iter();
            let dead = all.filter(|(number, entry)| is_dead(number, entry));
            dead.map(|(&number, &entry)| (number, entry)).take(DELETIONS).collect()
        };
        for (number, entry) in dead {
            if self.is_closing() {
                break;
            }
            // Only the base deletes its own objects, so a clone leaves them in the store.
            if !self.names.is_shared(number) {
                chain.store.delete(&self.names.of_entry(number, &entry))?;
                done.objects += 1;
                done.bytes += entry.len();
            }
            self.state.lock().map.table.entries.remove(&number);
        }
        Ok(())
    }

    /// Moves the live sectors of nearly empty data objects.
    fn move_data(&self, done: &mut Collected) -> Result<()> {
        let poor: Vec<(ObjectNumber, Entry)> = {
            let state = self.state.lock();
            let recent: BTreeSet<_> = state.recent.iter().map(|recent| recent.object).collect();
            let is_poor = |number: &ObjectNumber, entry: &Entry| {
                matches!(entry.holds, Holds::Data(_))
                    && !entry.is_open
                    && entry.live > 0
                    && !self.names.is_shared(*number)
                    && entry.live_permille() < LIVE_MIN
                    && !recent.contains(number)
            };
            let all = state.map.table.entries.iter();
            let poor = all.filter(|(number, entry)| is_poor(number, entry));
            poor.map(|(&number, &entry)| (number, entry)).take(MOVES).collect()
        };
        for (number, entry) in poor {
            let Holds::Data(shape) = entry.holds else { continue };
            if self.is_closing() {
                break;
            }
            let name = self.names.of_entry(number, &entry);
            let store = &self.chain.store;
            let head = 0..LEN as u64;
            let head = store.range_as(&name, &head, |bytes| Envelope::decode(&name, bytes))?;
            let extents = store.range_as(&name, &segment::tail(shape), |bytes| {
                segment::extents(&name, shape, head.body_crc, bytes)
            })?;
            let mut frame = 0;
            for extent in extents.iter().filter(|extent| !extent.is_hole) {
                let from = Location { object: number, frame };
                done.moved_bytes += self.move_run(extent.first, extent.count, from)? * SECTOR;
                frame += extent.count as u32;
            }
        }
        Ok(())
    }

    /// Rewrites the sectors that are still at the place `from`, and returns their number.
    fn move_run(&self, first: Sector, count: u64, from: Location) -> Result<u64> {
        let mut moved = 0;
        let mut at = 0;
        while at < count {
            let sector = Sector(first.0 + at);
            let piece = {
                let mut state = self.with_pages(sector, 1)?;
                state.map.find(sector, count - at)
            };
            let Ok(piece) = piece else { continue };
            let expected = Location { frame: from.frame + at as u32, ..from };
            if piece.location == Some(expected) {
                let step = piece.count.min(256);
                let mut content = vec![0; (step * SECTOR) as usize];
                self.read_sectors(sector, &mut content)?;
                moved += self.rewrite(sector, &content, expected)?;
                at += step;
            } else {
                at += piece.count;
            }
        }
        Ok(moved)
    }

    /// Marks map objects with little live data, so that the next checkpoint rewrites them.
    fn rewrite_map(&self) -> Result<()> {
        let (poor, pages) = {
            let state = self.state.lock();
            let is_poor = |number: &ObjectNumber, entry: &Entry| {
                matches!(entry.holds, Holds::Map(_))
                    && entry.live > 0
                    && !self.names.is_shared(*number)
                    && entry.live_permille() < MAP_LIVE_MIN
            };
            let all = state.map.table.entries.iter();
            let poor =
                all.filter(|(number, entry)| is_poor(number, entry)).map(|(&number, _)| number);
            let poor: BTreeSet<ObjectNumber> = poor.take(MOVES).collect();
            let pages: Vec<Missing> = state.map.pages_in(&poor);
            (poor, pages)
        };
        if poor.is_empty() {
            return Ok(());
        }
        for page in &pages {
            self.load_page(*page)?;
        }
        self.state.lock().map.write_again(&pages, &poor);
        Ok(())
    }

    fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }
}
