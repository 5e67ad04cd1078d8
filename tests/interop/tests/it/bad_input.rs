//! Wrong bytes on a device cause no panic, no wrong answer, and no change.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Device, FileDevice, MemoryDevice, OpenOptions};
use buttress_format::{Superblock, limits};
use buttress_fs::make::make;
use buttress_fs::{Filesystem, MakeOptions, MountOptions};
use buttress_interop::manifest::Manifest;
use buttress_interop::sample::{Library, Scale, change, fill};
use buttress_interop::scratch::Scratch;

const IMAGE_BYTES: u64 = 128 << 20;

/// The first bytes of the image, in which bits are flipped.
const FLIPPED_BYTES: u64 = 64 << 20;

/// Flips tried by default, each on a fresh copy. `BUTTRESS_BAD_FLIPS` sets another number.
const FLIPS: u64 = 250;

/// One in this many volumes is opened for writing and written to.
const WRITTEN_EVERY: u64 = 10;

const BLOCK: u64 = 4096;

/// A copy of a volume with one bit flipped.
fn flipped(base: &MemoryDevice, byte: u64, bit: u64, writable: bool) -> MemoryDevice {
    let copy = base.fork();
    let mut buf = [0];
    copy.read_at(byte, &mut buf).expect("within the device");
    buf[0] ^= 1 << bit;
    copy.write_at(byte, &buf).expect("within the device");
    if writable { copy } else { copy.read_only() }
}

fn scale() -> Scale {
    Scale { dirs: 3, files: 12, big_bytes: 1 << 20, links: 50, collisions: 6, ..Scale::default() }
}

fn populated() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(IMAGE_BYTES));
    make(&*device, &MakeOptions { seed: Some(3), ..MakeOptions::default() }).expect("a volume");
    let options = MountOptions::default();
    let filesystem = Filesystem::open(vec![device.clone()], options).expect("a good volume");
    fill(&Library::new(&filesystem), &scale());
    filesystem.close().expect("a good volume");
    device
}

fn opened(device: Arc<dyn Device>, options: &str) -> buttress_fs::Result<Filesystem> {
    Filesystem::open(vec![device], MountOptions::parse(options).expect("known options"))
}

/// A bit is flipped anywhere in the first 64 MiB: every read is right, or an error.
#[test]
fn flipped_bits() {
    let base = populated();
    let filesystem = opened(base.clone(), "ro,noatime").expect("a good volume");
    let good = Arc::new(Manifest::of_library(&filesystem));
    filesystem.close().expect("a good volume");
    assert!(good.errors.is_empty(), "{:?}", good.errors);
    let used = used_bytes(&base);

    let mut rng = Rng::new(11);
    let mut errors = 0;
    let flips = std::env::var("BUTTRESS_BAD_FLIPS").ok().and_then(|text| text.parse().ok());
    let flips = flips.unwrap_or(FLIPS);
    for flip in 0..flips {
        // Half of the flips are anywhere, and half in blocks that are not empty.
        let byte = match flip % 2 {
            0 => rng.below(FLIPPED_BYTES),
            _ => used[rng.below(used.len() as u64) as usize] + rng.below(BLOCK),
        };
        let bit = rng.below(8);
        let writes = flip.is_multiple_of(WRITTEN_EVERY);
        let device = flipped(&base, byte, bit, writes);
        let what = format!("flip {flip}: bit {bit} of byte {byte:#x}");
        errors += u64::from(within_limits(&what, device, &good, writes));
    }
    assert!(errors > flips / 20, "only {errors} flips were noticed: the flips miss the volume");
}

/// Blocks of the first 64 MiB that hold anything.
fn used_bytes(base: &MemoryDevice) -> Vec<u64> {
    let mut block = vec![0; BLOCK as usize];
    (0..FLIPPED_BYTES)
        .step_by(BLOCK as usize)
        .filter(|&at| {
            base.read_at(at, &mut block).expect("within the device");
            buttress_interop::holds_data(&block)
        })
        .collect()
}

/// Opens the volume, reads everything and maybe writes. Returns whether the damage was noticed.
fn within_limits(what: &str, device: MemoryDevice, good: &Arc<Manifest>, writes: bool) -> bool {
    let (answer, wait) = channel();
    let good = Arc::clone(good);
    std::thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| examine(Arc::new(device), &good, writes)));
        let _ = answer.send(outcome);
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Ok(Ok(Ok(noticed))) => noticed,
        Ok(Ok(Err(wrong))) => panic!("{what}: {wrong}"),
        Ok(Err(_)) => panic!("{what}: a panic"),
        Err(RecvTimeoutError::Timeout) => panic!("{what}: no end"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: the thread is gone"),
    }
}

fn examine(device: Arc<MemoryDevice>, good: &Manifest, writes: bool) -> Result<bool, String> {
    let options = if writes { "rw,noatime" } else { "ro,noatime" };
    let Ok(filesystem) = opened(device, options) else { return Ok(true) };
    let found = Manifest::of_library(&filesystem);
    for (path, entry) in &found.entries {
        let path_text = path.escape_ascii();
        match good.entries.get(path) {
            None => return Err(format!("{path_text} appeared")),
            Some(there) if !found.errors.is_empty() => {
                // The other names of the inode may lie in a directory that cannot be read.
                let same_as = there.same_as.clone();
                if (buttress_interop::manifest::Entry { same_as, ..entry.clone() }) != *there {
                    return Err(format!("{path_text} is {entry:?}, was {there:?}"));
                }
            }
            Some(there) if there != entry => {
                return Err(format!("{path_text} is {entry:?}, was {there:?}"));
            }
            Some(_) => {}
        }
    }
    if found.entries.len() < good.entries.len() && found.errors.is_empty() {
        return Err(format!("{} of {} names", found.entries.len(), good.entries.len()));
    }
    if writes && found.errors.is_empty() && filesystem.read_only_reason().is_none() {
        // A change may fail because it needs a damaged node. In this case the helper panics with a
        // text.
        let library = Library::new(&filesystem);
        let changed = catch_unwind(AssertUnwindSafe(|| change(&library, &scale(), 1)));
        if let Err(panic) = changed {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            let ours = ["write", "create", "unlink", "rename", "sync", "resolve", "punch", "link"];
            if !ours.iter().any(|word| text.starts_with(word)) {
                return Err(format!("while writing: {text}"));
            }
        }
    }
    let closed = filesystem.close();
    Ok(!found.errors.is_empty() || closed.is_err())
}

/// An image that is cut off anywhere is refused, or read with errors. The file is not changed.
#[test]
fn truncated_images() {
    let base = populated();
    let mut whole = vec![0; IMAGE_BYTES as usize];
    base.read_at(0, &mut whole).expect("the whole volume");
    let scratch = Scratch::new();
    let path = scratch.join("cut.img");
    for len in [1, 4096, 65_535, 65_536 + 100, 69_632, 1 << 20, 20 << 20, IMAGE_BYTES - 4096] {
        let cut = &whole[..len as usize];
        std::fs::write(&path, cut).expect("an image");
        for options in [OpenOptions::READ, OpenOptions::WRITE] {
            let text = refused(&path, options);
            assert!(!text.contains('\n') && !text.is_empty(), "{len}: {text:?} is not one line");
        }
        assert!(std::fs::read(&path).expect("an image") == cut, "{len}: the image was changed");
    }
}

/// Opens a volume, which must fail, and returns the error.
#[track_caller]
fn refused(path: &Path, options: OpenOptions) -> String {
    let device = match FileDevice::open(path, options) {
        Ok(device) => Arc::new(device),
        Err(error) => return error.to_string(),
    };
    let mount = if options.write { "rw" } else { "ro" };
    match opened(device, mount) {
        Ok(_) => panic!("{} opened", path.display()),
        Err(error) => error.to_string(),
    }
}

/// Files and devices that are no volume.
#[test]
fn wrong_types() {
    let scratch = Scratch::new();
    let empty = scratch.join("empty");
    std::fs::write(&empty, []).expect("a file");
    let text = scratch.join("text");
    std::fs::write(&text, "no volume\n".repeat(100_000)).expect("a file");
    let zeros = scratch.join("zeros");
    buttress_interop::linux::sparse_file(&zeros, 256 << 20);
    let null = Path::new("/dev/null");
    let missing = scratch.join("missing");
    for path in [&empty, &text, &zeros, scratch.path(), null, &missing] {
        for options in [OpenOptions::READ, OpenOptions::WRITE] {
            let said = refused(path, options);
            assert!(!said.contains('\n') && !said.is_empty(), "{said:?} is not one line");
        }
    }
}

/// With an unknown feature that only writers must know, the volume is read-only, and the reason
/// names the feature. With an unknown feature that readers must know, the volume is refused by that
/// name. Nothing is written in either case.
#[test]
fn unknown_features() {
    let base = populated();
    let offset = limits::SUPER_OFFSETS[0];
    let mut bytes = vec![0; limits::SUPER_SIZE];
    base.read_at(offset, &mut bytes).expect("a superblock");
    let superblock = Superblock::parse(&bytes, offset).expect("a good superblock");

    let mut changed = superblock.clone();
    changed.compat_ro.0 |= 1 << 50;
    let device = Arc::new(base.fork());
    device.write_at(offset, &changed.to_bytes(offset)).expect("within the device");
    let written = Arc::new(device.fork());
    let filesystem = opened(written.clone(), "rw").expect("readable");
    let reason = filesystem.read_only_reason().expect("read-only");
    assert!(reason.contains("4000000000000"), "{reason:?} does not name the feature");
    let found = Manifest::of_library(&filesystem);
    assert!(found.errors.is_empty() && found.entries.len() > 100);
    filesystem.close().expect("nothing to write");
    assert_eq!(contents(&written), contents(&device), "a volume that was refused was changed");

    let mut changed = superblock;
    changed.incompat.0 |= 1 << 51;
    let device = Arc::new(base.fork());
    device.write_at(offset, &changed.to_bytes(offset)).expect("within the device");
    for options in ["ro", "rw"] {
        let before = contents(&device);
        let error = opened(device.clone(), options).expect_err("an unknown feature");
        assert!(error.to_string().contains("8000000000000"), "{error} does not name the feature");
        assert_eq!(contents(&device), before, "a volume that was refused was changed");
    }
}

/// A fingerprint of the whole content of a device.
fn contents(device: &MemoryDevice) -> u64 {
    let mut buf = vec![0; 1 << 20];
    (0..device.len()).step_by(buf.len()).fold(0, |sum, at| {
        device.read_at(at, &mut buf).expect("within the device");
        buf.iter().fold(sum, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    })
}
