//! Requests of the kernel, each to its handler and its answer back.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use buttress_base::interrupt::Heeding;
use buttress_fs::SetAttr;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FileType, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::aside::BACKGROUND_MAX;
use crate::attr::{time_from_wire, time_or_now};
use crate::crew::{Duty, Kind};
use crate::door::content::{Asked, Write, Written};
use crate::door::listing::{Entries, Names};
use crate::door::{Answer, Caller, Door, Entry, VALID};
use crate::killed;

/// No state is kept for an open file: its node says it all.
const NO_HANDLE: FileHandle = FileHandle(0);

/// What is asked of the kernel, each where it can.
const WANTED: [InitFlags; 15] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_POSIX_ACL,
];

const REQUEST_LEN_MAX: u32 = 1 << 20;
const CONGESTED_AT: u16 = 384;

/// What the protocol library calls.
#[derive(Clone, Debug)]
pub(crate) struct Desk(pub(crate) Arc<Door>);

impl std::ops::Deref for Desk {
    type Target = Arc<Door>;

    fn deref(&self) -> &Arc<Door> {
        &self.0
    }
}

impl Desk {
    /// A duty for a request that may wait for space, for as long as somebody waits for the answer.
    fn work_for(&self, request: &Request, kind: Kind) -> (Duty<'_>, Option<Heeding>) {
        (self.crew.duty(kind), killed::heed(request.pid()))
    }
}

impl fuser::Filesystem for Desk {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Whatever an older kernel cannot do is a loss of speed or of an attribute, not of data.
        for wanted in WANTED {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "the kernel lacks a capability");
            }
        }
        let mut is_granted =
            |option: bool, wanted| option && config.add_capabilities(wanted).is_ok();
        let keeps_writes = self.options.writeback_cache;
        // Who asks over the bridge of a ring can do nothing, and changes nothing.
        if is_granted(keeps_writes, InitFlags::FUSE_WRITEBACK_CACHE) {
            self.keeps_writes.store(true, Ordering::Relaxed);
        }
        if is_granted(self.options.io_uring == Some(true), InitFlags::FUSE_OVER_IO_URING) {
            self.over_ring.store(true, Ordering::Relaxed);
        }
        let _ = config.set_max_write(REQUEST_LEN_MAX);
        if let Err(largest) = config.set_max_readahead(self.options.read_ahead_kib << 10) {
            let _ = config.set_max_readahead(largest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_congestion_threshold(CONGESTED_AT);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _duty = self.crew.duty(Kind::Meta);
        send_entry(
            self.guarded("lookup", parent.0, || Door::lookup(self, parent.0, name.as_bytes())),
            reply,
        );
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let _duty = self.crew.duty(Kind::Forget);
        let _ = self.guarded("forget", ino.0, || {
            Door::forget(self, ino.0, nlookup);
            Ok(())
        });
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let _duty = self.crew.duty(Kind::Meta);
        match self.guarded("getattr", ino.0, || Door::getattr(self, ino.0, fh.is_some())) {
            Ok(attr) => reply.attr(&VALID, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _duty = self.crew.duty(if size.is_some() { Kind::Space } else { Kind::Meta });
        let asked = Asked {
            has_handle: fh.is_some(),
            is_access_now: matches!(atime, Some(TimeOrNow::Now)),
            is_change_now: matches!(mtime, Some(TimeOrNow::Now)),
        };
        let set = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(time_or_now),
            mtime: mtime.map(time_or_now),
            ctime: ctime.map(time_from_wire),
            ..SetAttr::default()
        };
        match self.guarded("setattr", ino.0, || Door::setattr(self, caller(req), ino.0, set, asked))
        {
            Ok(attr) => reply.attr(&VALID, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let _duty = self.crew.duty(Kind::Meta);
        match self.guarded("readlink", ino.0, || Door::readlink(self, ino.0)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _work = self.work_for(req, Kind::Meta);
        let name = name.as_bytes();
        send_entry(
            self.guarded("mknod", parent.0, || {
                Door::mknod(self, caller(req), parent.0, name, mode, umask, rdev)
            }),
            reply,
        );
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _work = self.work_for(req, Kind::Meta);
        let name = name.as_bytes();
        send_entry(
            self.guarded("mkdir", parent.0, || {
                Door::mkdir(self, caller(req), parent.0, name, mode, umask)
            }),
            reply,
        );
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _duty = self.crew.duty(Kind::Meta);
        send_empty(
            self.guarded("unlink", parent.0, || Door::unlink(self, parent.0, name.as_bytes())),
            reply,
        );
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _duty = self.crew.duty(Kind::Meta);
        send_empty(
            self.guarded("rmdir", parent.0, || Door::rmdir(self, parent.0, name.as_bytes())),
            reply,
        );
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _work = self.work_for(req, Kind::Meta);
        let (name, target) = (link_name.as_bytes(), target.as_os_str().as_bytes());
        send_entry(
            self.guarded("symlink", parent.0, || {
                Door::symlink(self, caller(req), parent.0, name, target)
            }),
            reply,
        );
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _work = self.work_for(req, Kind::Meta);
        let (old, new) = (name.as_bytes(), newname.as_bytes());
        let renamed = self.guarded("rename", parent.0, || {
            Door::rename(self, parent.0, old, newparent.0, new, flags)
        });
        send_empty(renamed, reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let _work = self.work_for(req, Kind::Meta);
        let name = newname.as_bytes();
        send_entry(
            self.guarded("link", ino.0, || Door::link(self, ino.0, newparent.0, name)),
            reply,
        );
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _duty = self.crew.duty(Kind::Meta);
        match self.guarded("open", ino.0, || Door::open(self, caller(req), ino.0, flags.0)) {
            Ok(flags) => reply.opened(NO_HANDLE, flags),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _duty = self.crew.duty(Kind::read(size as usize));
        Door::read(self, ino.0, offset, size, lock_owner.is_some(), move |bytes| match bytes {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _duty = self.crew.duty(Kind::write(data.len()));
        let _heeding = killed::heed_write(req.pid(), write_flags);
        let (caller, flags) = (caller(req), flags.0);
        let write = Write { node: ino.0, offset, how: write_flags, flags, caller };
        match self.guarded("write", ino.0, || Door::write(self, write, data)) {
            Ok(Written::Bytes(count)) => send_written(self, write, count, reply),
            Ok(Written::Waits(patience)) => {
                let (desk, data, task) = (self.clone(), data.to_vec(), req.pid());
                self.where_room_comes(move || {
                    let _heeding = killed::heed_write(task, write_flags);
                    match desk.guarded("write", ino.0, || desk.write_aside(write, &data, &patience))
                    {
                        Ok(count) => send_written(&desk, write, count, reply),
                        Err(errno) => reply.error(errno),
                    }
                });
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing a file makes nothing durable, and a write that could fail has failed already. Said
        // once, this saves a request for every close.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // Too little for a duty: it counts, and nobody waits for it.
        send_empty(self.guarded("release", ino.0, || Door::release(self, ino.0, flags.0)), reply);
        self.crew.trifle_done();
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _duty = self.crew.duty(Kind::Sync);
        send_empty(self.guarded("fsync", ino.0, || Door::fsync(self, ino.0)), reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Listings keep no state, and the kernel may keep what it has listed. Said once, this saves
        // two requests for every listing.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _duty = self.crew.duty(Kind::List);
        match self.guarded("readdir", ino.0, || Door::readdir(self, ino.0, offset, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _duty = self.crew.duty(Kind::List);
        match self
            .guarded("readdirplus", ino.0, || Door::readdirplus(self, ino.0, offset, &mut reply))
        {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _duty = self.crew.duty(Kind::Sync);
        send_empty(self.guarded("fsyncdir", ino.0, || Door::fsync(self, ino.0)), reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let _duty = self.crew.duty(Kind::Meta);
        match self.guarded("statfs", ino.0, || Door::statfs(self)) {
            // Inodes are made as they are needed; there is no number of them to run out of.
            Ok(sizes) => reply.statfs(
                sizes.blocks,
                sizes.blocks_free,
                sizes.blocks_available,
                0,
                0,
                sizes.block_size,
                sizes.name_max,
                sizes.block_size,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _work = self.work_for(req, Kind::List);
        send_empty(
            self.guarded("setxattr", ino.0, || {
                Door::setxattr(self, caller(req), ino.0, name.as_bytes(), value, flags)
            }),
            reply,
        );
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _duty = self.crew.duty(Kind::List);
        send_sized(
            self.guarded("getxattr", ino.0, || Door::getxattr(self, ino.0, name.as_bytes())),
            size,
            reply,
        );
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _duty = self.crew.duty(Kind::List);
        send_sized(
            self.guarded("listxattr", ino.0, || Door::listxattr(self, caller(req), ino.0)),
            size,
            reply,
        );
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _duty = self.crew.duty(Kind::List);
        send_empty(
            self.guarded("removexattr", ino.0, || Door::removexattr(self, ino.0, name.as_bytes())),
            reply,
        );
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel decides by mode and list; it asks at all only where a mount lacks that option.
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _work = self.work_for(req, Kind::Meta);
        let name = name.as_bytes();
        match self.guarded("create", parent.0, || {
            Door::create(self, caller(req), parent.0, name, mode, umask, flags)
        }) {
            Ok(made) => reply.created(
                &VALID,
                &made.entry.attr,
                made.entry.generation,
                NO_HANDLE,
                made.flags,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _work = self.work_for(req, Kind::Meta);
        match self.guarded("ioctl", ino.0, || Door::ioctl(self, req.uid(), ino.0, cmd, in_data)) {
            Ok(result) => reply.ioctl(0, &result),
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _work = self.work_for(req, Kind::Space);
        send_empty(
            self.guarded("fallocate", ino.0, || {
                Door::fallocate(self, caller(req), ino.0, offset, length, mode)
            }),
            reply,
        );
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _duty = self.crew.duty(Kind::Meta);
        Door::lseek(self, ino.0, offset, whence, move |found| match found {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(errno),
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _work = self.work_for(req, Kind::Space);
        let (from, to) = ((ino_in.0, offset_in), (ino_out.0, offset_out));
        match self.guarded("copy_file_range", ino_in.0, || {
            Door::copy_range(self, caller(req), from, to, len)
        }) {
            Ok(count) => reply.written(count),
            Err(errno) => reply.error(errno),
        }
    }
}

impl Names for ReplyDirectory {
    fn add(&mut self, ino: u64, position: u64, kind: FileType, name: &[u8]) -> bool {
        Self::add(self, INodeNo(ino), position, kind, OsStr::from_bytes(name))
    }
}

impl Entries for ReplyDirectoryPlus {
    fn add(&mut self, entry: &Entry, valid: Duration, position: u64, name: &[u8]) -> bool {
        let (attr, name) = (&entry.attr, OsStr::from_bytes(name));
        Self::add(self, attr.ino, position, name, &valid, attr, entry.generation)
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), task: request.pid() }
}

fn send_entry(answer: Answer<Entry>, reply: ReplyEntry) {
    match answer {
        Ok(entry) => reply.entry(&VALID, &entry.attr, entry.generation),
        Err(errno) => reply.error(errno),
    }
}

/// Answers a write, once the kernel holds nothing that is older (C4).
fn send_written(desk: &Desk, write: Write, count: u32, reply: ReplyWrite) {
    let Some(old) = desk.old_pages(write, count) else { return reply.written(count) };
    match desk.leave() {
        Some(leave) => desk.drop_pages(old, move || {
            drop(leave);
            reply.written(count);
        }),
        None => {
            reply.written(count);
            desk.drop_pages(old, || ());
        }
    }
}

fn send_empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Sends a value, or only how long it is when the asker brought no room.
fn send_sized(answer: Answer<Vec<u8>>, room: u32, reply: ReplyXattr) {
    match answer {
        Ok(value) if room == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > room as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}
