//! The content of one file, each sector verified.
//!
//! # Invariants
//!
//! - **CO1** A sector of a file with checksums is given out only if some copy matches the checksum.
//!   A sector without a checksum is given out only if unverified bytes were asked for (RE2).
//! - **CO2** Copying a file takes a few MiB of memory, even if items state impossible lengths.

use std::error::Error as _;
use std::io;
use std::ops::Range;

use buttress_data::decompress;
use buttress_format::{Body, Compression, Extent, FileExtent, InodeFlags, Region, limits};

use crate::inode_items::{FileItem, InodeItems};
use crate::report::Entry;
use crate::salvage::Salvage;
use crate::sums::{Life, Sum, Sums};

/// Bytes of one read.
const STEP: u64 = 1 << 20;

/// A function that receives content: the offset in the file, and the bytes.
pub(crate) type Out<'o> = &'o mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

/// Copies content, and records the lost ranges in the entry.
pub(crate) struct Copier<'c> {
    pub(crate) salvage: &'c Salvage,
    pub(crate) sums: &'c dyn Sums,
    /// Whether sectors are accepted for which no checksum was found.
    pub(crate) unverified: bool,
}

/// Bytes, and which of their sectors are lost.
struct Read {
    bytes: Vec<u8>,
    bad: Vec<(usize, String)>,
    /// Whether some of the sectors have no checksum.
    unverified: bool,
}

impl Copier<'_> {
    /// Passes all readable content to `out`.
    ///
    /// # Errors
    ///
    /// The errors of `out` alone.
    pub(crate) fn copy(
        &self,
        parts: &InodeItems,
        entry: &mut Entry,
        out: Out<'_>,
    ) -> io::Result<()> {
        let size = parts.size();
        entry.size = size;
        let is_checked = parts.item.is_none_or(|item| item.flags & InodeFlags::NODATASUM == 0);
        for piece in &parts.pieces {
            if piece.offset >= size || !self.salvage.progress().goes_on() {
                continue;
            }
            match &piece.extent {
                Ok(extent) => self.extent(piece, extent, is_checked, entry, out)?,
                Err(why) => {
                    entry.lose(
                        piece.offset,
                        size - piece.offset,
                        format!("an item is damaged: {why}"),
                    );
                }
            }
        }
        if !parts.unknown.is_empty() && !parts.has_all_bytes() {
            for (range, why) in &parts.unknown {
                lose_uncovered(range, why, &parts.pieces, size, entry);
            }
        }
        Ok(())
    }

    fn extent(
        &self,
        piece: &FileItem,
        extent: &FileExtent,
        is_checked: bool,
        entry: &mut Entry,
        out: Out<'_>,
    ) -> io::Result<()> {
        let room = entry.size - piece.offset;
        match &extent.body {
            Body::Prealloc(_) => Ok(()),
            Body::Inline(data) => match self.unpack(extent, data) {
                Ok(bytes) => give(piece.offset, &bytes, room, entry, out),
                Err(why) => {
                    entry.lose(piece.offset, extent.ram_bytes.min(room), why);
                    Ok(())
                }
            },
            Body::Regular(region) if region.is_hole() => Ok(()),
            Body::Regular(region) if extent.compression == Compression::None => {
                self.plain(piece, region, is_checked, entry, out)
            }
            Body::Regular(region) => {
                let part = self.packed(extent, region, piece.life, is_checked);
                match part {
                    Ok((bytes, unverified)) => {
                        entry.unverified |= unverified;
                        give(piece.offset, &bytes, room, entry, out)
                    }
                    Err(why) => {
                        entry.lose(piece.offset, region.len.min(room), why);
                        Ok(())
                    }
                }
            }
        }
    }

    fn plain(
        &self,
        piece: &FileItem,
        region: &Region,
        is_checked: bool,
        entry: &mut Entry,
        out: Out<'_>,
    ) -> io::Result<()> {
        let len = region.len.min(entry.size - piece.offset);
        let sector = self.sector();
        let mut done = 0;
        while done < len && self.salvage.progress().goes_on() {
            let at = piece.offset + done;
            let step = STEP.min(len - done);
            let disk = region.disk.end(region.offset + done);
            let extent = Extent::new(disk, step.div_ceil(sector) * sector);
            let read = self.sectors(extent, piece.life, is_checked);
            entry.unverified |= read.unverified;
            let mut bad = read.bad.into_iter().peekable();
            for (index, bytes) in read.bytes.chunks(sector as usize).enumerate() {
                let within = index as u64 * sector;
                let room = step - within;
                match bad.next_if(|(sector, _)| *sector == index) {
                    Some((_, why)) => entry.lose(at + within, sector.min(room), why),
                    None => give(at + within, bytes, room, entry, out)?,
                }
            }
            self.salvage.progress().advance(step);
            done += step;
        }
        Ok(())
    }

    /// Decompresses a part of an extent. The result is complete, or an error.
    fn packed(
        &self,
        extent: &FileExtent,
        region: &Region,
        life: Life,
        is_checked: bool,
    ) -> Result<(Vec<u8>, bool), String> {
        if region.disk_len > limits::MAX_COMPRESSED || region.disk_len == 0 {
            return Err("it is compressed, and of an impossible length".to_owned());
        }
        let read = self.sectors(region.extent(), life, is_checked);
        if let Some((_, why)) = read.bad.into_iter().next() {
            return Err(why);
        }
        self.salvage.progress().advance(region.len);
        let bytes = self.unpack(extent, &read.bytes)?;
        let part = usize::try_from(region.offset).ok().and_then(|from| {
            let to = from.checked_add(usize::try_from(region.len).ok()?)?.min(bytes.len());
            bytes.get(from..to)
        });
        let part = part.ok_or_else(|| "its part lies outside of the extent".to_owned())?;
        Ok((part.to_vec(), read.unverified))
    }

    fn unpack(&self, extent: &FileExtent, data: &[u8]) -> Result<Vec<u8>, String> {
        let logical = extent.region().map(|region| region.disk).unwrap_or_default();
        let sector = self.sector() as usize;
        decompress(extent.compression, logical, data, extent.ram_bytes, sector)
            .map_err(|error| error.to_string())
    }

    /// Reads sectors, each from any copy that matches its checksum.
    fn sectors(&self, extent: Extent, life: Life, is_checked: bool) -> Read {
        let sector = self.sector() as usize;
        let count = (extent.len / sector as u64) as usize;
        let mut read = Read { bytes: vec![0; count * sector], bad: Vec::new(), unverified: false };
        if !extent.start.0.is_multiple_of(sector as u64) {
            read.bad = (0..count).map(|at| (at, "its address is impossible".to_owned())).collect();
            return read;
        }
        let sums = match is_checked {
            true => self.sums.of(self.salvage, extent, life),
            false => vec![None; count],
        };
        read.unverified = sums.iter().any(Option::is_none);
        let may_read = |sum: &Option<Sum>| sum.is_some() || !is_checked || self.unverified;
        let verify = |at: usize, bytes: &[u8]| self.verify(sums.get(at).copied().flatten(), bytes);
        let volume = &self.salvage.volume;
        if sums.iter().all(may_read) {
            let check = |at: usize, bytes: &[u8]| verify(at / sector, bytes);
            if volume.read_verified_by(extent.start, &mut read.bytes, sector, check).is_ok() {
                return read;
            }
        }
        for (index, bytes) in read.bytes.chunks_exact_mut(sector).enumerate() {
            if !sums.get(index).is_some_and(may_read) {
                let why = "its checksum is lost, so nothing says whether it is right".to_owned();
                read.bad.push((index, why));
                continue;
            }
            let at = extent.start.end((index * sector) as u64);
            if let Err(error) = volume.read_verified(at, bytes, |bytes| verify(index, bytes)) {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                read.bad.push((index, format!("{error}{cause}")));
            }
        }
        read
    }

    fn verify(&self, sum: Option<Sum>, bytes: &[u8]) -> Result<(), &'static str> {
        let csum = self.salvage.superblock().csum_type;
        match sum {
            Some(sum) if csum.digest(bytes)[..csum.size()] != sum[..csum.size()] => {
                Err("its checksum does not match")
            }
            _ => Ok(()),
        }
    }

    fn sector(&self) -> u64 {
        u64::from(self.salvage.superblock().sectorsize)
    }
}

/// Gives out bytes, up to the end of the file.
fn give(at: u64, bytes: &[u8], room: u64, entry: &mut Entry, out: Out<'_>) -> io::Result<()> {
    let len = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
    entry.bytes += len as u64;
    out(at, &bytes[..len])
}

/// Records lost parts of a range in which extent items may be lost. A part is lost if no readable
/// extent covers it.
fn lose_uncovered(
    range: &Range<u64>,
    why: &str,
    pieces: &[FileItem],
    size: u64,
    entry: &mut Entry,
) {
    let mut at = range.start;
    let end = range.end.min(size);
    for piece in pieces {
        let len = piece.extent.as_ref().map_or(0, FileExtent::file_len);
        let stop = piece.offset.saturating_add(len);
        if stop <= at {
            continue;
        }
        if piece.offset >= end {
            break;
        }
        if piece.offset > at {
            entry.lose(at, piece.offset - at, why.to_owned());
        }
        at = stop;
    }
    if at < end {
        entry.lose(at, end - at, why.to_owned());
    }
}
