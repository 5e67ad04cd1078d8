//! The content of files, and the attributes that change with it.
//!
//! # Invariants
//!
//! - **C1** Every change of content or owner takes privileges of the file away as `privileges`
//!   says. Capabilities are removed before the change. Set-id bits are removed before the change or
//!   together with it.
//! - **C2** A search for data or a hole is answered after the kernel has sent the content that it
//!   holds.
//! - **C3** A READ or a WRITE is direct if it names an owner of locks (`FUSE_READ_LOCKOWNER`,
//!   `FUSE_WRITE_LOCKOWNER`). The kernel names an owner only in direct requests. The flags of the
//!   descriptor do not tell direct requests apart: page faults, readahead and writes to a part of a
//!   page carry the same flags. The kernel holds folios during these other requests
//!   (`front_end::D4`).
//! - **C4** A direct WRITE is answered after the kernel has dropped its older pages of the written
//!   range. The kernel itself drops these pages before it sends the request. It drops them again
//!   after the answer only if the program waits for the write. During an asynchronous write, a read
//!   may bring the old bytes into the kernel's cache again.
//! - **C5** Times that the kernel writes back from its cache are always accepted. Such a request
//!   sets `ctime` and no access time. It names a handle of a file that is open for writing, or
//!   repeats the `mtime` that the file has in the volume. A program that sets `mtime` alone uses
//!   the path, or sets another time.
//! - **C6** Each READ is an access; the kernel then invalidates its cached access time by itself.
//!   An open for reading is an access if the kernel may hold content of the file. In that case,
//!   reads of the open file may never reach the server. With `strictatime` the kernel drops its
//!   content of the file at each open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use buttress_base::interrupt;
use buttress_fs::{ErrorKind, FallocateMode, InodeFlags, NameError, SetAttr, XattrFlags};
use buttress_protocol::{Attr as WireAttr, Errno, OpenFlags, WriteFlags};
use rustix::fs::OFlags;

use super::privileges::{Change, drop_capability};
use super::space::SpacePermit;
use super::verity::expect_unsealed;
use super::{Caller, FrontEnd, Node, refuse};
use crate::Options;
use crate::acl::{self, Acl};
use crate::errno::Answer;
use crate::notifier_threads::{Span, WaitPermit};

/// The attribute that holds file capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

/// The outcome of a read.
pub(crate) enum Read {
    /// The number of bytes that were read.
    Bytes(usize),
    /// The kernel may hold newer content and has to send it first.
    Behind(Arc<Node>),
}

/// The outcome of a search for data or a hole.
pub(crate) enum Seek {
    /// The offset that was found.
    At(i64),
    /// The kernel may hold data that it has not sent. It has to send that data first.
    Behind(Arc<Node>),
}

/// The parameters of a write, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) node: u64,
    pub(crate) offset: u64,
    pub(crate) how: WriteFlags,
    /// The flags that the file was opened with.
    pub(crate) flags: i32,
    pub(crate) caller: Caller,
}

/// How a program, or the kernel, asks for new times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimesRequest {
    /// Whether the request is on behalf of an open file.
    pub(crate) has_handle: bool,
    /// Whether the access time, or `mtime`, is to become the time of the request.
    pub(crate) is_access_now: bool,
    pub(crate) is_change_now: bool,
}

/// The parameters of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Whether the read is direct: it fills no page of the kernel (C3).
    pub(crate) is_direct: bool,
    /// The flags that the file was opened with.
    pub(crate) flags: i32,
}

/// The outcome of a write.
#[derive(Debug)]
pub(crate) enum Written {
    /// The number of bytes that were written.
    Bytes(u32),
    /// The volume is full, but an unlinked file will soon be freed: [`FrontEnd::write_aside`] waits
    /// until the file is freed.
    MustWait(SpacePermit),
}

/// Returns how the kernel shall treat an open file. Its pages stay valid across opens, since the
/// kernel is told of each change that does not come through this mount (`front_end::D2`). Direct
/// I/O bypasses the kernel's cache, and several direct writes may run at once.
fn open_flags(flags: i32, options: &Options) -> OpenFlags {
    if oflags(flags).contains(OFlags::DIRECT) {
        OpenFlags::DIRECT_IO.with(OpenFlags::PARALLEL_DIRECT_WRITES)
    } else if options.strict_access {
        // Without `KEEP_CACHE` the kernel drops its pages of the file, so the next read reaches the
        // server.
        OpenFlags::PARALLEL_DIRECT_WRITES
    } else {
        OpenFlags::KEEP_CACHE.with(OpenFlags::PARALLEL_DIRECT_WRITES)
    }
}

fn oflags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

impl FrontEnd {
    /// Answers `open`.
    pub(crate) fn open(&self, caller: Caller, id: u64, flags: i32) -> Answer<OpenFlags> {
        self.expect_openable(id, oflags(flags))?;
        let opened = self.opened(id, flags)?;
        // The open is counted, so no Merkle tree is made of what is cut here
        // (`front_end::verity::FY1`).
        let done = self.cut_opened(caller, id, flags).and_then(|()| self.note_open(id, flags));
        if done.is_err() {
            // The kernel has no open file, so it sends no `release`.
            self.release(id, flags)?;
        }
        done.map(|()| opened)
    }

    /// Cuts a file to nothing, if the open asks for it.
    fn cut_opened(&self, caller: Caller, id: u64, flags: i32) -> Answer<()> {
        if !oflags(flags).contains(OFlags::TRUNC) {
            return Ok(());
        }
        let node = self.node(id)?;
        // An empty file gets new times, too.
        let mtime = Some(buttress_fs::now());
        let set = SetAttr { size: Some(0), mtime, ..SetAttr::default() };
        // The answer to an open has no attributes (`front_end::privileges::S5`). A truncation
        // forgets dirty data before it reads, so it does not give up.
        if interrupt::keeping_devices(|| self.apply(&node, set, caller))? {
            self.notifier_threads.doubt_attributes(id);
        }
        Ok(())
    }

    /// Takes an open for reading as an access, if the kernel may answer the reads from its cache
    /// (C6).
    fn note_open(&self, id: u64, flags: i32) -> Answer<()> {
        let flags = oflags(flags);
        let is_for_reading = !flags.intersects(OFlags::WRONLY | OFlags::DIRECT | OFlags::NOATIME);
        if !is_for_reading || self.options.strict_access {
            return Ok(());
        }
        let node = self.node(id)?;
        if node.may_be_cached.load(Ordering::Relaxed) && node.inode.note_access() {
            // Otherwise the kernel would continue to show the access time from its cache.
            self.notifier_threads.doubt_attributes(id);
        }
        Ok(())
    }

    /// Refuses to open an immutable file, or one with fs-verity, for writing. Refuses to open an
    /// append-only file for writing without `O_APPEND`. The check is made here, because later
    /// writes from the kernel's cache do not name the program.
    fn expect_openable(&self, id: u64, flags: OFlags) -> Answer<()> {
        if !is_for_writing(flags) && !flags.contains(OFlags::TRUNC) {
            return Ok(());
        }
        let inode = self.node(id)?.inode.attr().flags;
        let grows = flags.contains(OFlags::APPEND) && !flags.contains(OFlags::TRUNC);
        let is_fixed = inode & (InodeFlags::IMMUTABLE | InodeFlags::RO_VERITY) != 0;
        let refused = is_fixed || inode & InodeFlags::APPEND != 0 && !grows;
        if refused { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Takes note of an open file, and returns how the kernel shall treat it.
    pub(super) fn opened(&self, id: u64, flags: i32) -> Answer<OpenFlags> {
        let node = self.node_to_open(id)?;
        if is_for_writing(oflags(flags)) {
            node.writers.fetch_add(1, Ordering::SeqCst);
            if let Err(errno) = expect_unsealed(&node) {
                self.release(id, flags)?;
                return Err(errno);
            }
            node.may_be_cached.store(true, Ordering::Relaxed);
        }
        Ok(open_flags(flags, &self.options))
    }

    /// Records a `release`: a program has closed the file, and the kernel has sent all data that
    /// was written through the closed descriptor.
    pub(crate) fn release(&self, id: u64, flags: i32) -> Answer<()> {
        let node = self.node(id)?;
        let one_fewer = |count: &AtomicU32| {
            let fewer = |count: u32| count.checked_sub(1);
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        };
        one_fewer(&node.openers);
        if is_for_writing(oflags(flags)) {
            one_fewer(&node.writers);
        }
        self.show_anew(&node);
        self.renew_closed(id, &node);
        Ok(())
    }

    /// Says whether the kernel may hold unsent content of a node.
    fn may_be_behind(&self, node: &Node) -> bool {
        self.keeps_writes() && node.writers.load(Ordering::Relaxed) > 0
    }

    /// Answers `setattr`.
    pub(crate) fn setattr(
        &self,
        caller: Caller,
        id: u64,
        mut set: SetAttr,
        asked: TimesRequest,
    ) -> Answer<WireAttr> {
        let node = self.node(id)?;
        self.expect_timeable(&node, &set, asked)?;
        let Options { users, groups, .. } = &self.options;
        if let Some(time) = set.ctime.filter(|_| self.keeps_writes()) {
            // The kernel sends a cached `ctime` late. A later `chattr`, of which the kernel does
            // not know, may have set a newer `ctime`.
            let ours = node.inode.attr().ctime;
            set.ctime =
                Some(if (ours.sec, ours.nsec) > (time.sec, time.nsec) { ours } else { time });
        }
        set.uid = set.uid.map(|id| users.write(id).ok_or(Errno::EOVERFLOW)).transpose()?;
        set.gid = set.gid.map(|id| groups.write(id).ok_or(Errno::EOVERFLOW)).transpose()?;
        // Without its cache for writes the kernel leaves the times of `ftruncate` to the server. It
        // changes them also if the file has the length already; `truncate` does not.
        if !self.keeps_writes() && asked.has_handle && set.size.is_some() {
            set.mtime = set.mtime.or_else(|| Some(buttress_fs::now()));
        }
        self.apply(&node, set, caller)?;
        Ok(self.wire_attr(&node.inode.attr()))
    }

    /// Refuses new times for immutable and append-only files. An append-only file may get the time
    /// of the request, as `touch` asks. Times that the kernel writes back are accepted (C5).
    fn expect_timeable(&self, node: &Node, set: &SetAttr, asked: TimesRequest) -> Answer<()> {
        if set.atime.is_none() && set.mtime.is_none() {
            return Ok(());
        }
        let attr = node.inode.attr();
        let is_written_back = self.keeps_writes()
            && set.atime.is_none()
            && set.ctime.is_some()
            && (asked.has_handle || set.mtime == Some(attr.mtime));
        // With the write-back cache on, the kernel puts its own time in place of a program's "now".
        let is_touch = asked.is_access_now
            && (asked.is_change_now
                || set.mtime.is_some_and(|time| self.keeps_writes() && set.ctime == Some(time)));
        let refusing = match is_touch {
            true => InodeFlags::IMMUTABLE,
            false => InodeFlags::IMMUTABLE | InodeFlags::APPEND,
        };
        let is_refused = attr.flags & refusing != 0 && !is_written_back;
        if is_refused { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Changes attributes. Returns whether the change removed set-id bits.
    fn apply(&self, node: &Node, mut set: SetAttr, caller: Caller) -> Answer<bool> {
        if set.size.is_some() {
            expect_unsealed(node)?;
        }
        if let Some(bits) = set.mode {
            chmod_list(node, bits)?;
        }
        let has_new_owner = set.uid.is_some() || set.gid.is_some();
        let mut lost = 0;
        if has_new_owner || set.size.is_some() {
            drop_capability(node)?;
            let change = if has_new_owner { Change::Owner } else { Change::Content };
            lost = self.lost_bits(node, caller, change);
        }
        if lost != 0 {
            let bits = set.mode.unwrap_or_else(|| node.inode.attr().mode);
            set.mode = Some(bits & !lost);
        }
        node.inode.set_attr(&set).map_err(refuse)?;
        Ok(lost != 0)
    }

    /// Reads into `buffer`. A direct read (C3) may meet the end of the file. The kernel may know of
    /// a later end, and must send its data first (C2). The kernel keeps the data of all other
    /// reads, so `filled_pages` counts those reads (C4).
    pub(crate) fn read_into(
        &self,
        id: u64,
        offset: u64,
        buffer: &mut [u8],
        how: Reading,
    ) -> Answer<Read> {
        let node = self.node(id)?;
        node.note_read(how.flags);
        if !how.is_direct {
            node.may_be_cached.store(true, Ordering::Relaxed);
            let count = node.filled_pages.read_for_kernel(|| node.read(offset, buffer))?;
            return Ok(Read::Bytes(count));
        }
        let count = node.read(offset, buffer)?;
        let is_behind = count < buffer.len() && self.may_be_behind(&node);
        Ok(if is_behind { Read::Behind(node) } else { Read::Bytes(count) })
    }

    /// Runs `work` after the kernel has sent its unsent content of a node.
    pub(crate) fn after_flush(&self, id: u64, work: impl FnOnce() + Send + 'static) {
        self.notifier_threads.after_flush(id, Span::Whole, work);
    }

    /// Permission for a request to wait for the kernel. `None` while many requests wait.
    pub(crate) fn wait_permit(&self) -> Option<WaitPermit> {
        self.notifier_threads.wait_permit()
    }

    /// Answers `write`, unless the write has to wait for space.
    pub(crate) fn write(self: &Arc<Self>, write: Write, data: &[u8]) -> Answer<Written> {
        let node = self.node(write.node)?;
        if let Some(change) = write.takes_privileges() {
            self.content_changes(write.node, &node, write.caller, change)?;
        }
        let attempt = || self.write_once(&node, write, data);
        match self.with_space_now(write.node, attempt) {
            Ok(answer) => self.after_write(&node, write, answer),
            Err(awaited) => match self.space_permit(awaited) {
                Some(permit) => return Ok(Written::MustWait(permit)),
                None => self.write_in_vain(write),
            },
        }
        .map(Written::Bytes)
    }

    /// Refuses a write that would have to wait for space, and is not allowed to wait.
    pub(crate) fn write_in_vain(&self, write: Write) -> Answer<u32> {
        self.after_write(&*self.node(write.node)?, write, Err(Errno::ENOSPC))
    }

    /// Runs `work` on the thread on which writes may wait for space. [`Self::write_aside`] does the
    /// waiting.
    pub(crate) fn on_space_thread(&self, work: impl FnOnce() + Send + 'static) {
        self.notifier_threads.on_space_thread(work);
    }

    /// Retries a write that found no space, and waits for space.
    pub(crate) fn write_aside(
        &self,
        write: Write,
        data: &[u8],
        permit: &SpacePermit,
    ) -> Answer<u32> {
        let node = self.node(write.node)?;
        let attempt = || self.write_once(&node, write, data);
        let answer = self.with_space_aside(write.node, permit, attempt);
        self.after_write(&node, write, answer)
    }

    fn write_once(&self, node: &Node, write: Write, data: &[u8]) -> Answer<usize> {
        let Node { inode, .. } = node;
        // With its write-back cache on, the kernel sets the times of files itself, also for direct
        // writes. It sends the times as attributes, before the pages or after them.
        let written = match (write.goes_past_cache(), self.keeps_writes()) {
            (true, true) => inode.preserve_times().write_direct(write.offset, data),
            (false, true) => inode.preserve_times().write_at(write.offset, data),
            (true, false) => inode.write_direct(write.offset, data),
            (false, false) => inode.write_at(write.offset, data),
        };
        written.map_err(refuse)
    }

    fn after_write(&self, node: &Node, write: Write, answer: Answer<usize>) -> Answer<u32> {
        let written = answer.inspect_err(|errno| {
            if write.is_from_cache() {
                self.remember_failed_write(write.node, node, *errno);
            }
        })?;
        // For a file with `O_SYNC` the kernel sends an fsync after page-cache writes, but not after
        // direct writes.
        if write.is_direct() && oflags(write.flags).intersects(OFlags::SYNC | OFlags::DSYNC) {
            node.inode.sync().map_err(refuse)?;
        }
        Ok(u32::try_from(written).expect("no more is written than a request carries"))
    }

    /// Answers `fsync` and `fsyncdir`. An fsync of a top directory makes the whole volume durable,
    /// since the kernel passes syncfs(2) on for block devices only.
    pub(crate) fn fsync(&self, id: u64) -> Answer<()> {
        let inode = &self.node(id)?.inode;
        // Each mount of the volume has a top of its own, so the check accepts the top of any
        // subvolume.
        let is_top = inode.id().ino == self.fs.root().id().ino;
        if is_top { self.fs.sync().map_err(refuse) } else { inode.sync().map_err(refuse) }
    }

    /// Answers `fallocate`.
    pub(crate) fn fallocate(
        &self,
        caller: Caller,
        id: u64,
        offset: u64,
        len: u64,
        how: u32,
    ) -> Answer<()> {
        let keep_size = how & KEEP_SIZE != 0;
        let how = match (how & !KEEP_SIZE, keep_size) {
            (0, _) => FallocateMode::Allocate { keep_size },
            (PUNCH_HOLE, true) => FallocateMode::PunchHole,
            (ZERO_RANGE, _) => FallocateMode::ZeroRange { keep_size },
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let node = self.node(id)?;
        self.content_changes(id, &node, caller, Change::Content)?;
        let allocate = || match self.keeps_writes() {
            true => node.inode.preserve_times().fallocate(offset, len, how),
            false => node.inode.fallocate(offset, len, how),
        };
        self.with_space(id, || allocate().map_err(refuse))
    }

    /// Searches for data or a hole (C2), unless the kernel may hold newer content.
    pub(crate) fn seek_now(&self, id: u64, offset: i64, whence: i32) -> Answer<Seek> {
        let node = self.node(id)?;
        if self.may_be_behind(&node) {
            return Ok(Seek::Behind(node));
        }
        node.seek(offset, whence).map(Seek::At)
    }

    /// Answers `copy_file_range`.
    pub(crate) fn copy_range(
        &self,
        caller: Caller,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Answer<u64> {
        let (source, target) = (self.node(from.0)?, self.node(to.0)?);
        self.content_changes(to.0, &target, caller, Change::Content)?;
        let copy = || match self.keeps_writes() {
            true => target.inode.preserve_times().copy_from(to.1, &source.inode, from.1, len),
            false => source.inode.copy_range(from.1, &target.inode, to.1, len),
        };
        self.with_space(to.0, || copy().map_err(refuse))
    }
}

impl Write {
    /// Whether the write comes from the kernel's cache: the program has already been told that the
    /// write succeeded.
    fn is_from_cache(self) -> bool {
        self.how.contains(WriteFlags::CACHE)
    }

    /// Whether the write is direct: no page of the kernel holds its data (C3).
    pub(super) fn is_direct(self) -> bool {
        self.how.contains(WriteFlags::LOCKOWNER) && !self.is_from_cache()
    }

    /// The privileges of the file that the write removes. `None` for writes from the kernel's
    /// cache.
    fn takes_privileges(self) -> Option<Change> {
        let is_unprivileged = self.how.contains(WriteFlags::KILL_SUIDGID);
        match (self.is_from_cache(), is_unprivileged) {
            (true, _) => None,
            (false, true) => Some(Change::ContentUnprivileged),
            (false, false) => Some(Change::ContentPrivileged),
        }
    }

    fn goes_past_cache(self) -> bool {
        self.is_direct() && oflags(self.flags).contains(OFlags::DIRECT)
    }
}

impl Node {
    /// Takes a READ as an access, unless the program asked for none (`O_NOATIME`).
    fn note_read(&self, flags: i32) {
        if !oflags(flags).contains(OFlags::NOATIME) {
            self.inode.note_access();
        }
    }

    /// Reads the content that the volume has, for a request that may not wait. A short read is a
    /// valid answer. An empty read would mean the end of the file, so `EINTR` is returned instead.
    pub(crate) fn read_known(&self, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        match self.read(offset, buffer)? {
            0 => Err(Errno::EINTR),
            count => Ok(count),
        }
    }

    /// Searches for data or a hole in the content that the volume has.
    pub(crate) fn seek(&self, offset: i64, whence: i32) -> Answer<i64> {
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = match whence {
            SEEK_DATA => self.inode.seek_data(offset),
            SEEK_HOLE => self.inode.seek_hole(offset),
            _ => return Err(Errno::EINVAL),
        };
        i64::try_from(found.map_err(refuse)?).map_err(|_| Errno::EOVERFLOW)
    }
}

fn is_for_writing(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

/// Updates the access list after a change of the permission bits.
fn chmod_list(node: &Node, bits: u32) -> Answer<()> {
    match node.inode.xattr(acl::ACCESS) {
        Ok(value) => {
            let mut list = Acl::parse(&value).ok_or(Errno::EIO)?;
            list.set_mode(bits);
            node.inode
                .set_xattr(acl::ACCESS, &list.to_bytes(), XattrFlags::default())
                .map_err(refuse)
        }
        Err(error) if error.kind() == ErrorKind::Name(NameError::NoAttribute) => Ok(()),
        Err(error) => Err(refuse(error)),
    }
}
