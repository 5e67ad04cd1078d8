//! Reads from segments in memory, from cached lines, and from objects. [`Ahead`] decides what is
//! read ahead.
//!
//! [`Ahead`]: crate::ahead::Ahead
//!
//! # Invariants
//!
//! - **E1** Bytes from the store are used only after their checksum was verified.
//! - **E2** For each sector, a read returns the content of one moment. That content includes all
//!   writes that ended before the read began.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::ahead::{Job, PIECE_LINES, REQUESTS};
use crate::core::{Core, Kept, Logged};
use crate::disk_lines::{DiskKey, DiskLines};
use crate::envelope::damaged;
use crate::error::{Error, Result};
use crate::fetch::{Fetch, Source};
use crate::lines::{Key, LINE, LINE_BYTES, LineHeat};
use crate::map::{Holds, Missing, PAGE_SECTORS};
use crate::segment::{FRAME, frame_at, unframe};
use crate::units::{ObjectNumber, SECTOR, Sector};
use crate::write::has_nodes;
use buttress_store::StoreError;

/// The longest part of an object that one request asks for, in lines.
const REQUEST_LINES: u32 = 16;
/// How often a read is repeated when an object no longer exists.
const TRIES: u32 = 3;

/// A part of a read that only the local log has.
struct FromLog {
    to: u64,
    count: u64,
    frame: u32,
    logged: Arc<Logged>,
}

/// Lines of one object that are asked for at once.
#[derive(Clone, Copy, Debug)]
struct Request {
    object: ObjectNumber,
    first: u32,
    count: u32,
}

impl Core {
    /// Reads whole sectors.
    pub(crate) fn read_sectors(&self, first: Sector, content: &mut [u8]) -> Result<()> {
        self.read_many(&mut [(first, content)])
    }

    /// Reads several runs of whole sectors, with as few waits as possible.
    pub(crate) fn read_many(&self, wants: &mut [(Sector, &mut [u8])]) -> Result<()> {
        for attempt in 1.. {
            match self.read_once(wants) {
                // The collector moved the content of the object, and then deleted the object.
                Err(Error::Store { source: StoreError::NotFound, .. }) if attempt < TRIES => {}
                answer => return answer,
            }
        }
        Ok(())
    }

    fn read_once(&self, wants: &mut [(Sector, &mut [u8])]) -> Result<()> {
        let mut sources = BTreeMap::new();
        let mut all = Vec::with_capacity(wants.len());
        for (first, content) in wants.iter_mut() {
            let count = content.len() as u64 / SECTOR;
            let fetches = self.plan_read(*first, count, Some(content), &mut sources)?;
            all.push(self.read_cached(&sources, fetches, content)?);
        }
        let lines =
            self.lines_of(all.iter().flatten().map(|part| part.key()).collect(), &sources)?;
        for ((_, content), parts) in wants.iter_mut().zip(all) {
            for part in parts {
                if !part.copy_from(lines.get(&part.key()), content) {
                    return Err(damaged("a line in memory", "it lacks a frame".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Fills what the caches have, and returns the other parts, each of which lies in one line.
    fn read_cached(
        &self,
        sources: &BTreeMap<ObjectNumber, Source>,
        fetches: Vec<Fetch>,
        content: &mut [u8],
    ) -> Result<Vec<Fetch>> {
        let mut absent = Vec::new();
        for fetch in fetches {
            let Some(source) = sources.get(&fetch.object) else { continue };
            let parts = fetch.parts(source)?;
            absent.extend(parts.filter(|part| !self.is_filled(source.epoch, *part, content)));
        }
        Ok(absent)
    }

    /// Fills a part from the cache in memory or on the local disk. Returns whether one has it.
    fn is_filled(&self, epoch: u32, part: Fetch, content: &mut [u8]) -> bool {
        let key = part.key();
        if let Some(line) = self.lines.look_up(key) {
            return part.copy_from(Some(&line), content);
        }
        let Some(disk) = &self.disk else { return false };
        // The disk's own file system caches these bytes, so the cache in memory keeps no copy.
        if disk.read(disk_key(epoch, key), part.skip(), &mut content[part.bytes()]) {
            return true;
        }
        let line = disk.get(disk_key(epoch, key)).map(Arc::<[u8]>::from);
        line.is_some_and(|line| {
            self.lines.put(key, Arc::clone(&line), LineHeat::Once);
            part.copy_from(Some(&line), content)
        })
    }

    /// Fills the sectors that are in memory or in holes, and returns the places of all other
    /// sectors. Without `content`, fills nothing.
    fn plan_read(
        &self,
        first: Sector,
        count: u64,
        mut content: Option<&mut [u8]>,
        sources: &mut BTreeMap<ObjectNumber, Source>,
    ) -> Result<Vec<Fetch>> {
        let mut fetches = Vec::new();
        let mut from_log = Vec::new();
        let mut done = 0;
        let mut missing: Option<Missing> = None;
        while done < count {
            if let Some(missing) = missing.take() {
                self.load_page(missing)?;
            }
            let mut state = self.state.lock();
            while done < count {
                let piece = match state.map.find(Sector(first.0 + done), count - done) {
                    Ok(piece) => piece,
                    Err(absent) => {
                        missing = Some(absent);
                        break;
                    }
                };
                let bytes = (done * SECTOR) as usize..((done + piece.count) * SECTOR) as usize;
                let mut part = content.as_mut().map(|content| &mut content[bytes]);
                let (to, count) = (done, piece.count);
                done += piece.count;
                let Some(location) = piece.location else {
                    part.iter_mut().for_each(|part| part.fill(0));
                    continue;
                };
                let sealed = state.sealed.get(&location.object).map(|sealed| &sealed.whole);
                let sealed = match sealed {
                    Some(Kept::Memory(segment)) => Some(&**segment),
                    Some(Kept::Log(logged)) => {
                        let logged = Arc::clone(logged);
                        from_log.push(FromLog { to, count, frame: location.frame, logged });
                        continue;
                    }
                    None => None,
                };
                let open = Some(&state.open).filter(|open| open.number == location.object);
                if let Some(segment) = open.or(sealed) {
                    let sectors = part.iter_mut().flat_map(|p| p.chunks_exact_mut(SECTOR as usize));
                    for (frame, sector) in (location.frame..).zip(sectors) {
                        segment.read(frame, sector);
                    }
                    continue;
                }
                if let std::collections::btree_map::Entry::Vacant(vacant) =
                    sources.entry(location.object)
                {
                    let entry = state.map.table.get(location.object).copied();
                    let name = self.object_name(&state, location.object);
                    let (Some(Holds::Data(shape)), Some(name)) = (entry.map(|e| e.holds), name)
                    else {
                        let why = format!("the map names no data object {}", location.object.0);
                        return Err(damaged(&self.chain.place, why));
                    };
                    let epoch = entry.map_or(0, |entry| entry.epoch);
                    vacant.insert(Source { name, sectors: shape.sectors, epoch });
                }
                fetches.push(Fetch { to, count, object: location.object, frame: location.frame });
            }
        }
        for part in from_log {
            let Some(content) = &mut content else { break };
            let bytes = (part.to * SECTOR) as usize..((part.to + part.count) * SECTOR) as usize;
            self.read_logged(&part.logged, part.frame, &mut content[bytes])?;
        }
        Ok(fetches)
    }

    /// Returns lines that the caches lacked, by parallel requests to the store. Waits for lines
    /// that another thread has asked for.
    fn lines_of(
        &self,
        absent: BTreeSet<Key>,
        sources: &BTreeMap<ObjectNumber, Source>,
    ) -> Result<BTreeMap<Key, Arc<[u8]>>> {
        let mut lines = BTreeMap::new();
        if absent.is_empty() {
            return Ok(lines);
        }
        let (asked, others) = self.ahead.take(absent);
        let mut unread = BTreeSet::new();
        for &key in &asked.keys {
            // Another thread may have received the line after this thread looked into the cache.
            match self.lines.get(key) {
                Some(found) => drop(lines.insert(key, found)),
                None => drop(unread.insert(key)),
            }
        }
        lines.extend(self.ask(sources, &unread)?);
        drop(asked);
        let mut failed = BTreeSet::new();
        for key in others {
            if !self.ahead.wait(key) {
                return Err(Error::Abandoned { place: self.chain.place.clone() });
            }
            match self.lines.get(key) {
                Some(found) => drop(lines.insert(key, found)),
                None => drop(failed.insert(key)),
            }
        }
        lines.extend(self.ask(sources, &failed)?);
        Ok(lines)
    }

    /// Asks the store for lines, by parallel requests.
    fn ask(
        &self,
        sources: &BTreeMap<ObjectNumber, Source>,
        keys: &BTreeSet<Key>,
    ) -> Result<Vec<(Key, Arc<[u8]>)>> {
        self.ask_by(sources, &joined(keys.iter().copied()), LineHeat::Once)
    }

    fn ask_by(
        &self,
        sources: &BTreeMap<ObjectNumber, Source>,
        requests: &[Request],
        used: LineHeat,
    ) -> Result<Vec<(Key, Arc<[u8]>)>> {
        let range = |request: &Request| {
            let source = &sources[&request.object];
            (source.name.clone(), request.range(source))
        };
        let ranges: Vec<_> = requests.iter().map(range).collect();
        let found = self.chain.store.many_as(&ranges, |index, bytes| {
            let request = &requests[index];
            self.take(request, &sources[&request.object], bytes, used)
        })?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads ahead of readers until the device is closed.
    pub(crate) fn read_ahead(&self) {
        while let Some(job) = self.ahead.next() {
            let done = match &job {
                Job::Piece(piece) => self.read_piece(piece),
                Job::Page(page) => self.load_page_of(Sector(page * PAGE_SECTORS)),
            };
            if let Err(error) = done {
                tracing::debug!(%error, ?job, "it was not read ahead");
            }
        }
    }

    /// Brings a range of sectors into the cache in memory, or a part of the range (`ahead::A2`).
    fn read_piece(&self, piece: &Range<u64>) -> Result<()> {
        let mut sources = BTreeMap::new();
        let count = piece.end - piece.start;
        let fetches = self.plan_read(Sector(piece.start), count, None, &mut sources)?;
        let mut absent = BTreeSet::new();
        for fetch in &fetches {
            let Some(source) = sources.get(&fetch.object) else { continue };
            for part in fetch.parts(source)? {
                let key = part.key();
                let on_disk = |disk: &Arc<DiskLines>| disk.has(disk_key(source.epoch, key));
                if absent.len() < PIECE_LINES
                    && !self.lines.has(key)
                    && !self.disk.as_ref().is_some_and(on_disk)
                {
                    absent.insert(key);
                }
            }
        }
        let (asked, _) = self.ahead.take(absent);
        let mut requests = joined(asked.keys.iter().copied().filter(|key| !self.lines.has(*key)));
        requests.truncate(REQUESTS);
        self.ask_by(&sources, &requests, LineHeat::Awaited).map(drop)
    }

    /// Keeps a line on the local disk. With `only_nodes`, keeps it only if it has nodes of trees.
    pub(crate) fn to_disk(&self, epoch: u32, key: Key, line: &[u8], only_nodes: bool) {
        let Some(disk) = &self.disk else { return };
        let is_node = has_nodes(line, self.state.lock().node_ids);
        if is_node || !only_nodes {
            disk.put(disk_key(epoch, key), line, is_node);
        }
    }

    /// Checks an answer (E1), and keeps its lines.
    fn take(
        &self,
        request: &Request,
        source: &Source,
        bytes: &[u8],
        used: LineHeat,
    ) -> Result<Vec<(Key, Arc<[u8]>)>> {
        let mut lines = Vec::with_capacity(request.count as usize);
        // New memory costs more than a copy, so the cache gets the only new memory of a line.
        let mut room = vec![0; LINE_BYTES];
        for (line, frames) in (request.first..).zip(bytes.chunks(LINE as usize * FRAME)) {
            let content = &mut room[..LINE_BYTES.min(frames.len() / FRAME * SECTOR as usize)];
            unframe(&source.name, request.object, line * LINE, frames, content)?;
            let content: Arc<[u8]> = Arc::from(&*content);
            self.to_disk(source.epoch, (request.object, line), &content, false);
            self.lines.put((request.object, line), Arc::clone(&content), used);
            lines.push(((request.object, line), content));
        }
        Ok(lines)
    }
}

impl Request {
    fn range(&self, source: &Source) -> Range<u64> {
        let end = ((self.first + self.count) * LINE).min(source.sectors);
        frame_at(self.first * LINE)..frame_at(end)
    }
}

fn disk_key(epoch: u32, (object, line): Key) -> DiskKey {
    DiskKey { epoch, object, line }
}

/// Joins neighbouring lines into requests.
fn joined(keys: impl Iterator<Item = Key>) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for (object, line) in keys {
        match requests.last_mut() {
            Some(last)
                if last.object == object
                    && last.first + last.count == line
                    && last.count < REQUEST_LINES =>
            {
                last.count += 1;
            }
            _ => requests.push(Request { object, first: line, count: 1 }),
        }
    }
    requests
}
