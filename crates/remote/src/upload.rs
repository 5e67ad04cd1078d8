//! Sends sealed segments to the store, several at once.

use std::sync::Arc;

use buttress_base::activity::{self, Cause};
use bytes::Bytes;

use crate::core::{Core, Kept};
use crate::error::Result;
use crate::lines::{LINE, LINE_BYTES, LineHeat};
use crate::map_cache::Part;
use crate::segment::{self, Segment};
use crate::units::{ObjectNumber, SECTOR};

/// A segment as the body of a request, without a copy.
struct Whole(Arc<Segment>);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Core {
    /// The work of one thread: sends segments until the volume is closed.
    pub(crate) fn send_all(&self) {
        while let Some((number, whole)) = self.next_to_send() {
            // A segment from the log takes memory while it is sent, so writers wait for it, too.
            let is_logged = matches!(whole, Kept::Log(_));
            self.state.lock().in_memory += usize::from(is_logged);
            let sent = self.in_memory(whole).and_then(|segment| self.send(&segment));
            if let Err(error) = sent {
                let _ = self.failed(error);
                return;
            }
            let mut state = self.state.lock();
            state.sealed.remove(&number);
            state.in_memory -= 1;
            if let Some(logging) = &mut state.logging {
                logging.places.remove(&number);
            }
            drop(state);
            self.signals.room.notify_all();
        }
    }

    /// Waits for a segment, and takes it.
    fn next_to_send(&self) -> Option<(ObjectNumber, Kept)> {
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() {
                return None;
            }
            let next = state.sealed.iter_mut().find(|(_, sealed)| !sealed.is_taken);
            if let Some((&number, sealed)) = next {
                sealed.is_taken = true;
                return Some((number, sealed.whole.clone()));
            }
            if state.is_closing {
                return None;
            }
            state.wait(&self.signals.sealed);
        }
    }

    fn send(&self, segment: &Arc<Segment>) -> Result<()> {
        let name = self.chain.names.object(segment.number, self.epoch, true);
        self.chain.store.put(&name, &Bytes::from_owner(Whole(Arc::clone(segment))))?;
        // Until a checkpoint has the extents of this segment, each opening reads them from the tail
        // of this object. So the local disk keeps a copy.
        let (number, shape) = (segment.number, segment.shape());
        let at = segment::tail(shape);
        let tail = segment.bytes().get(at.start as usize..).unwrap_or_default();
        let part = Part { name, object: number, epoch: self.epoch, at, is_extents: true };
        self.keep_part(&part, tail);
        // Data that was just written is often read soon, so its lines are cached.
        let lines = segment.sectors().div_ceil(LINE);
        // New memory costs more than a copy, so the cache gets the only new memory of a line.
        let mut room = vec![0; LINE_BYTES];
        for line in 0..lines {
            let frames = (segment.sectors() - line * LINE).min(LINE);
            let content = &mut room[..LINE_BYTES.min(frames as usize * SECTOR as usize)];
            let sectors = content.chunks_exact_mut(SECTOR as usize);
            for (frame, sector) in (line * LINE..).zip(sectors) {
                segment.read(frame, sector);
            }
            self.to_disk(self.epoch, (segment.number, line), content, true);
            self.lines.put((segment.number, line), Arc::from(&*content), LineHeat::Once);
        }
        Ok(())
    }

    /// Waits until all segments up to a number are objects.
    pub(crate) fn wait_sent(&self, last: ObjectNumber) -> Result<()> {
        let _waiting = activity::wait(Cause::Store);
        let mut state = self.state.lock();
        loop {
            self.check(&state)?;
            if state.sealed.keys().next().is_none_or(|first| *first > last) {
                return Ok(());
            }
            state.wait(&self.signals.room);
        }
    }
}
