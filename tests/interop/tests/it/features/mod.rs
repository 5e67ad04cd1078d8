//! Every feature of the format, in both directions. A volume that Linux made is read and changed
//! here, and a volume that was made here is read and changed by Linux. Each side sees the state
//! that the other side left, and both checkers find no fault.
//!
//! The features are in [`table`], a row and two tests each. Features with tests of their own are
//! listed there, too.
//!
//! # Invariants
//!
//! - **F1** Nothing is compared with itself: each tree is listed by its writer and by the other
//!   side.
//! - **F2** Opening a volume for reading changes no byte of it.

mod acts;
mod table;

use std::path::PathBuf;

use buttress_block::{Device, FileDevice};
use buttress_fs::make::make_on;
use buttress_fs::{Filesystem, MakeOptions};
use buttress_interop::linux::{Images, Mount, has_linux_btrfs, has_program};
use buttress_interop::manifest::{Depth, Entry, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};

use crate::open::{close, manifest, open_with};

/// A feature: the options of each side for it, and the work of each side besides filling the
/// volume.
pub(crate) struct Feature {
    devices: usize,
    mib: u64,
    /// The arguments of Linux's `mkfs.btrfs`.
    mkfs: &'static [&'static str],
    /// Sets the options of our `mkfs`.
    make: fn(&mut MakeOptions),
    /// Linux's mount options.
    linux: &'static str,
    /// Our mount options.
    ours: &'static str,
    scale: Scale,
    /// The work of Linux.
    there: fn(&Mount),
    /// Our work.
    here: fn(&Filesystem),
    /// Whether Linux balances the whole volume at the end.
    balance: bool,
}

impl Default for Feature {
    fn default() -> Self {
        Self {
            devices: 1,
            mib: 512,
            mkfs: &[],
            make: |_| {},
            linux: "",
            ours: "",
            scale: Scale { dirs: 8, files: 20, big_bytes: 3 << 20, ..Scale::default() },
            there: |_| {},
            here: |_| {},
            balance: true,
        }
    }
}

impl Feature {
    /// Linux makes and fills, we read, we change, Linux changes, we read.
    #[track_caller]
    fn made_by_linux(&self) {
        if !has_linux_btrfs() {
            return;
        }
        let images = Images::new(self.devices, self.mib << 20);
        images.mkfs(self.mkfs);
        self.linux_works(&images, |folder| fill(folder, &self.scale), Some(self.there));
        let before = contents(images.paths());
        self.both_show_the_same(&images);
        assert!(contents(images.paths()) == before, "reading changed the image");
        self.we_work(&images, |library| change(library, &self.scale, 1), Some(self.here));
        self.linux_works(&images, |folder| change(folder, &self.scale, 2), None);
        self.ends(&images);
    }

    /// We make and fill, Linux reads, Linux changes, we change, Linux reads.
    #[track_caller]
    fn made_here(&self) {
        if !has_linux_btrfs() && !has_program("btrfs") {
            return;
        }
        let images = Images::new(self.devices, self.mib << 20);
        // Linux knows volumes on several devices by their identifiers, so no two tests may share an
        // identifier.
        let seed = (self.devices == 1).then_some(1);
        let mut options = MakeOptions { seed, ..MakeOptions::default() };
        (self.make)(&mut options);
        let create = |path| FileDevice::create(path, self.mib << 20).expect("the image opens");
        let devices: Vec<_> = images.paths().iter().map(create).collect();
        let parts: Vec<_> = devices.iter().map(|device| device as &dyn Device).collect();
        make_on(&parts, &options).expect("a new volume");
        drop(devices);
        images.check();
        self.we_work(&images, |library| fill(library, &self.scale), Some(self.here));
        if !has_linux_btrfs() {
            return;
        }
        self.both_show_the_same(&images);
        self.linux_works(&images, |folder| change(folder, &self.scale, 1), Some(self.there));
        self.both_show_the_same(&images);
        self.we_work(&images, |library| change(library, &self.scale, 2), None);
        self.ends(&images);
    }

    /// Lets Linux write, and runs both checkers on the result.
    #[track_caller]
    fn linux_works(&self, images: &Images, write: impl FnOnce(&Folder), act: Option<fn(&Mount)>) {
        let mount = images.mount(self.linux);
        write(&Folder::new(mount.path()));
        if let Some(act) = act {
            act(&mount);
        }
        mount.unmount();
        images.check();
    }

    /// Writes through the library. The content after the close must equal the content before.
    #[track_caller]
    fn we_work(&self, images: &Images, write: impl FnOnce(&Library), act: Option<fn(&Filesystem)>) {
        let filesystem = open_with(images.paths(), &format!("rw,noatime,{}", self.ours));
        assert_eq!(filesystem.read_only_reason(), None);
        write(&Library::new(&filesystem));
        if let Some(act) = act {
            act(&filesystem);
        }
        filesystem.sync().expect("a sync");
        let before = Manifest::of_library(&filesystem);
        close(filesystem);
        images.check();
        let after = manifest(images.paths());
        before.assert_same("before closing", &after, "after opening again", Depth::Volume);
    }

    #[track_caller]
    fn both_show_the_same(&self, images: &Images) {
        let mount = images.mount(&format!("ro,{}", self.linux));
        let linux = Manifest::of_folder(mount.path());
        mount.unmount();
        linux.assert_same("Linux", &manifest(images.paths()), "the library", Depth::Volume);
    }

    /// Linux reads every copy, and balances everything if that is possible. Neither side reports a
    /// fault.
    #[track_caller]
    fn ends(&self, images: &Images) {
        let mount = images.mount(self.linux);
        let scrub = mount.btrfs("scrub start -B -R");
        for line in scrub.lines().filter(|line| line.contains("errors:")) {
            assert!(line.trim_end().ends_with(" 0"), "scrub: {scrub}");
        }
        if self.balance {
            mount.btrfs("balance start --full-balance");
        }
        let linux = Manifest::of_folder(mount.path());
        mount.unmount();
        images.check();
        let ours = manifest(images.paths());
        linux.assert_same("Linux in the end", &ours, "the library", Depth::Volume);
    }
}

/// The whole content of the files, as fingerprints of their blocks.
fn contents(paths: &[PathBuf]) -> Vec<u64> {
    let folder = paths[0].parent().expect("images are in a folder");
    let manifest = Manifest::of_folder(folder);
    let image =
        |(path, entry): (&Vec<u8>, &Entry)| path.ends_with(b".img").then_some(entry.content);
    manifest.entries.iter().filter_map(image).collect()
}
