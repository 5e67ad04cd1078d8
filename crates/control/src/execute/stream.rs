//! Subvolumes as streams: written from a volume, or read into it.
//!
//! # Invariants
//!
//! - **T1** The client of the order has the other end of the stream. If the client ends, the next
//!   piece of the stream fails, and the order ends.
//! - **T2** The kernel learns of a received subvolume when it is created, and again when it is
//!   complete. The second time, the kernel drops its cached data of the incomplete subvolume.

use std::io::{BufReader, Read, Write};
use std::num::NonZeroU64;

use buttress_base::text;
use buttress_fs::{FileKind, Filesystem, TreeId};
use buttress_fuse::KernelSync;
use buttress_send::stream::Version;
use buttress_send::{Event, ReceiveOptions, SendOptions, Sendable, Subvolumes};
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::order::{PathInVolume, Sending, Step, Watch};

/// Bytes of a stream that are read ahead.
const AHEAD_BYTES: usize = 1 << 20;
/// The most errors that one answer has. With no limit, every command of a stream may fail.
const ERRORS_MAX: usize = 1000;

/// Writes a read-only subvolume to `output`; returns the number of bytes.
pub(super) fn send(
    fs: &Filesystem,
    sending: &Sending,
    output: &mut dyn Write,
    watch: Watch<'_>,
) -> Result<Value> {
    let chosen = choose(fs, sending)?;
    let name = || sending.subvolume.text.clone();
    let sent = buttress_send::send(fs, &chosen, CountedOutput { output, watch, bytes: 0 });
    Ok(json!({ "bytes": sent.context(name)?.bytes }))
}

/// Creates the subvolumes of the streams in `input`. Returns their names, and whether each
/// subvolume began as an empty subvolume or as a snapshot. Returns errors, too, if several commands
/// may fail. `max_errors` is the number of failed commands at which receiving ends, 0 for no limit.
pub(super) fn receive(
    fs: &Filesystem,
    (dir, max_errors): (&PathInVolume, u64),
    kernel_sync: Option<&KernelSync>,
    input: &mut dyn Read,
    watch: Watch<'_>,
) -> Result<Value> {
    let inode = dir.inode(fs)?;
    if inode.kind() != FileKind::Directory {
        let what = format!("{}: is no directory", dir.text);
        return Err(Failure::new(Exit::Failure, what));
    }
    let input = BufReader::with_capacity(AHEAD_BYTES, CountedInput { input, watch, bytes: 0 });
    let (mut begun, mut names, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let mut tree = None;
    let mut options = ReceiveOptions::default();
    options.max_errors = NonZeroU64::new(max_errors);
    let home = Subvolumes::new(fs, inode.clone());
    let done = buttress_send::receive_with(&home, input, options, |event| {
        let (kind, name) = match event {
            Event::Failed(error) => {
                // The first errors tell more than the errors that follow from them.
                if errors.len() < ERRORS_MAX {
                    errors.push(error.to_owned());
                }
                return;
            }
            Event::Subvolume(name) => ("subvol", name),
            Event::Snapshot(name) => ("snapshot", name),
            Event::Complete(name) => {
                names.push(text::encode(name));
                if let Some((kernel_sync, tree)) = kernel_sync.zip(tree.take()) {
                    kernel_sync.invalidate_content(tree);
                    kernel_sync.note_created(inode.id(), name);
                }
                return;
            }
            _ => return,
        };
        begun.push(json!({ "kind": kind, "name": text::encode(name) }));
        if let Some(kernel_sync) = kernel_sync {
            tree = inode.lookup(name).ok().map(|top| top.id().tree);
            kernel_sync.note_created(inode.id(), name);
        }
    });
    if let Err(failure) = done.context(|| dir.text.clone()) {
        if errors.is_empty() {
            return Err(failure);
        }
        errors.push(failure.to_string());
    }
    Ok(json!({ "begun": begun, "subvolumes": names, "errors": errors }))
}

/// Looks up every subvolume that the order names. An error names the subvolume that cannot be used.
fn choose(fs: &Filesystem, sending: &Sending) -> Result<SendOptions> {
    let (id, sent) = subvolume(fs, &sending.subvolume, "subvolume")?;
    let mut options = SendOptions::new(id);
    // The command line accepts only known versions of the stream, so its orders do not need the
    // default.
    options.version = Version::from_number(sending.proto).unwrap_or_default();
    options.compressed_data = sending.compressed_data;
    options.no_data = sending.no_data;
    options.continues = sending.continues;
    options.stays_open = sending.stays_open;
    if let Some(parent) = &sending.parent {
        options.parent = Some(subvolume(fs, parent, "parent subvolume")?.0);
    }
    let mut nearest: Option<(u64, TreeId)> = None;
    for source in &sending.clone_sources {
        let (id, source) = subvolume(fs, source, "cloned subvolume")?;
        options.clone_sources.push(id);
        if is_relative(&sent, &source) {
            let distance = sent.source.ctransid.abs_diff(source.source.ctransid);
            if nearest.is_none_or(|(best, _)| distance < best) {
                nearest = Some((distance, id));
            }
        }
    }
    if options.parent.is_none() && !sending.clone_sources.is_empty() {
        let Some((_, parent)) = nearest else {
            let what = format!("parent determination failed for {}", sending.subvolume.text);
            return Err(Failure::new(Exit::Failure, what));
        };
        options.parent = Some(parent);
    }
    Ok(options)
}

/// Whether one subvolume is a snapshot of the other, or both are snapshots of a third.
fn is_relative(one: &Sendable, other: &Sendable) -> bool {
    let none = [0; 16];
    one.parent_uuid == other.uuid
        || other.parent_uuid == one.uuid
        || one.parent_uuid != none && one.parent_uuid == other.parent_uuid
}

fn subvolume(fs: &Filesystem, spot: &PathInVolume, role: &str) -> Result<(TreeId, Sendable)> {
    let tree = spot.subvolume(fs)?;
    match buttress_send::sendable(fs, tree) {
        Ok(found) => Ok((tree, found)),
        Err(buttress_send::Error::NotReadOnly) => {
            let what = format!("{role} {} is not read-only", spot.text);
            Err(Failure::new(Exit::Failure, what))
        }
        Err(error) => Err(error).context(|| spot.text.clone()),
    }
}

/// The output of a stream. Counts bytes, and fails if the client has ended.
struct CountedOutput<'s> {
    output: &'s mut dyn Write,
    watch: Watch<'s>,
    bytes: u64,
}

impl Write for CountedOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        report_progress(self.watch, self.bytes)?;
        let len = self.output.write(bytes)?;
        self.bytes += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

/// The input of a stream. Counts bytes, and fails if the client has ended.
struct CountedInput<'s> {
    input: &'s mut dyn Read,
    watch: Watch<'s>,
    bytes: u64,
}

impl Read for CountedInput<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        report_progress(self.watch, self.bytes)?;
        let len = self.input.read(buffer)?;
        self.bytes += len as u64;
        Ok(len)
    }
}

/// Fails once the client is gone (T1).
fn report_progress(watch: &mut dyn FnMut(&Step) -> bool, done: u64) -> std::io::Result<()> {
    if watch(&Step { done, ..Step::default() }) {
        return Ok(());
    }
    Err(std::io::Error::other("the program that asked for it is gone"))
}
