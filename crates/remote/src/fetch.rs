//! Parts of a read that lie in objects.

use std::ops::Range;
use std::sync::Arc;

use crate::envelope::damaged;
use crate::error::Result;
use crate::lines::{Key, LINE};
use crate::units::{ObjectNumber, SECTOR};

/// A part of a read that is in an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    /// The offset in the caller's buffer, in sectors.
    pub(crate) to: u64,
    pub(crate) count: u64,
    pub(crate) object: ObjectNumber,
    pub(crate) frame: u32,
}

/// An object that a read needs data from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) sectors: u32,
    pub(crate) epoch: u32,
}

impl Fetch {
    /// The fetch in parts, each of which lies in one line.
    pub(crate) fn parts(self, source: &Source) -> Result<impl Iterator<Item = Self> + use<>> {
        let end = self.frame + self.count as u32;
        if end > source.sectors {
            return Err(damaged(&source.name, "the map names frames past its end".to_owned()));
        }
        let lines = self.frame / LINE..end.div_ceil(LINE);
        Ok(lines.map(move |line| {
            let frame = self.frame.max(line * LINE);
            let count = u64::from(end.min((line + 1) * LINE) - frame);
            Self { to: self.to + u64::from(frame - self.frame), count, frame, ..self }
        }))
    }

    /// The line of a part.
    pub(crate) fn key(&self) -> Key {
        (self.object, self.frame / LINE)
    }

    /// The offset of a part in its line, in bytes.
    pub(crate) fn skip(&self) -> usize {
        (self.frame % LINE) as usize * SECTOR as usize
    }

    /// The place of a part in the caller's buffer.
    pub(crate) fn bytes(&self) -> Range<usize> {
        (self.to * SECTOR) as usize..((self.to + self.count) * SECTOR) as usize
    }

    /// Fills a part from its line. Returns false if the line lacks it.
    pub(crate) fn copy_from(&self, line: Option<&Arc<[u8]>>, content: &mut [u8]) -> bool {
        let to = &mut content[self.bytes()];
        let from = line.and_then(|line| line.get(self.skip()..self.skip() + to.len()));
        from.is_some_and(|from| {
            to.copy_from_slice(from);
            true
        })
    }
}
