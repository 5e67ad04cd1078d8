//! A part of a disk image, as Linux sees it.

use std::path::{Path, PathBuf};

use super::image::check;
use super::loop_device::Loop;
use super::mount::Mount;
use super::run;
use crate::scratch::Scratch;

/// A part of a disk image.
#[derive(Clone, Debug)]
pub struct Part {
    disk: PathBuf,
    /// The first byte, and the length in bytes.
    range: (u64, u64),
}

impl Part {
    /// The part of `disk` with `len` bytes from `start` on.
    #[must_use]
    pub fn new(disk: &Path, start: u64, len: u64) -> Self {
        Self { disk: disk.to_owned(), range: (start, len) }
    }

    /// Makes a volume in this part with Linux's tool.
    ///
    /// # Panics
    ///
    /// If the tool refuses.
    #[track_caller]
    pub fn mkfs(&self) {
        let device = Loop::attach_part(&self.disk, self.range);
        run("mkfs.btrfs", ["-q", "-f", &device.device]);
    }

    /// Shows the volume in this part through Linux until the guard drops.
    ///
    /// # Panics
    ///
    /// If Linux refuses.
    #[track_caller]
    #[must_use]
    pub fn mount(&self, scratch: &Scratch, options: &str) -> Mount {
        Mount::new(scratch, vec![Loop::attach_part(&self.disk, self.range)], options)
    }

    /// Runs `btrfs check` on the volume in this part.
    ///
    /// # Panics
    ///
    /// When `btrfs check` finds something.
    #[track_caller]
    pub fn check(&self) {
        let device = Loop::attach_part(&self.disk, self.range);
        check(Path::new(&device.device));
    }

    /// The partitions that util-linux finds on a disk: number, first byte and length, by number.
    ///
    /// # Panics
    ///
    /// If util-linux finds no table.
    #[track_caller]
    #[must_use]
    pub fn all(disk: &Path) -> Vec<(u32, u64, u64)> {
        let disk = disk.to_str().expect("ASCII");
        let columns = ["--raw", "--noheadings", "--output", "NR,START,SECTORS", disk];
        let shown = run("partx", columns);
        let parsed = shown.lines().map(|line| {
            let numbers: Vec<u64> =
                line.split(' ').map(|number| number.parse().expect("a number")).collect();
            (numbers[0] as u32, numbers[1] * 512, numbers[2] * 512)
        });
        let mut found: Vec<_> = parsed.collect();
        found.sort_unstable();
        found
    }
}
