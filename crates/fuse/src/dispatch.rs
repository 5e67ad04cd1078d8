//! Passes each request of the kernel to its handler and sends the answer, for every transport.
//!
//! # What must hold
//!
//! - All transports share one decoder and one table of requests, and add nothing to them.
//! - A handler runs in [`FrontEnd::guarded`], so a panic is answered (`front_end::D1`).

mod bytes;
mod orders;
mod weight;

use std::sync::Arc;

use buttress_base::activity;
use buttress_fs::SetAttr;
use buttress_protocol::{
    AttrOut, Errno, Head, InitFlags, OpenFlags, Operation, Reply, SetattrFlags, SetattrIn,
    StatfsOut, Terms, kind_name,
};

use crate::attr::time_from_wire;
use crate::device::PAYLOAD_LEN;
use crate::errno::Answer;
use crate::exchange::Exchange;
use crate::front_end::content::TimesRequest;
use crate::front_end::{Caller, FrontEnd};
use crate::notifier_threads::BACKGROUND_MAX;
use crate::timed::Timed;
use crate::{Options, counts, killed};

pub(crate) use weight::kind;

/// Features that every mount asks for. A kernel may lack some of them.
const WANTED: [InitFlags; 15] = [
    InitFlags::ASYNC_READ,
    InitFlags::ASYNC_DIO,
    InitFlags::ATOMIC_O_TRUNC,
    InitFlags::BIG_WRITES,
    InitFlags::CACHE_SYMLINKS,
    InitFlags::DIRECT_IO_ALLOW_MMAP,
    InitFlags::DONT_MASK,
    InitFlags::DO_READDIRPLUS,
    InitFlags::READDIRPLUS_AUTO,
    InitFlags::EXPLICIT_INVAL_DATA,
    InitFlags::EXPORT_SUPPORT,
    InitFlags::HANDLE_KILLPRIV_V2,
    InitFlags::NO_OPENDIR_SUPPORT,
    InitFlags::PARALLEL_DIROPS,
    InitFlags::POSIX_ACL,
];

const CONGESTED_AT: u16 = 384;

/// The most bytes of one copy if the answer has a 32-bit count. Whole sectors keep the rest of a
/// larger copy aligned.
const NARROW_COPY_MAX: u64 = 1 << 30;

/// The features and limits that a mount with these options asks for. A feature that an older kernel
/// lacks costs speed or an attribute, never data.
pub(crate) fn terms(options: &Options) -> Terms {
    // With the write-back cache on, the kernel trusts its own lengths of files. A followed volume
    // goes without the cache, since another machine changes its files.
    let gathers_writes = options.writeback_cache && options.follow.is_none();
    let options_wanted = [
        (gathers_writes, InitFlags::WRITEBACK_CACHE),
        (options.io_uring == Some(true), InitFlags::OVER_IO_URING),
    ];
    let wanted_by_options = options_wanted.into_iter().filter(|(is_wanted, _)| *is_wanted);
    // If the kernel cached the target of a symbolic link, later reads of the link would not reach
    // the server.
    let is_wanted =
        |flag: &InitFlags| !(options.strict_access && *flag == InitFlags::CACHE_SYMLINKS);
    let wanted =
        WANTED.into_iter().filter(is_wanted).chain(wanted_by_options.map(|(_, flag)| flag));
    Terms {
        wanted: wanted.fold(InitFlags::default(), InitFlags::with),
        max_write: PAYLOAD_LEN as u32,
        max_readahead: options.read_ahead_kib << 10,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTED_AT,
    }
}

/// Handles a request and answers it, in this thread or from another one.
pub(crate) fn serve<X: Exchange>(front: &Arc<FrontEnd>, exchange: X) {
    let exchange = Timed::start(exchange);
    let head = exchange.head();
    let _working = activity::begin(head.opcode, head.node, exchange.began);
    counts::count(head.opcode);
    let operation = match Operation::decode(head.opcode, head.node, exchange.parts()) {
        Ok(operation) => operation,
        Err(errno) => return exchange.answer(Err(errno)),
    };
    let _scope = if gives_up(&operation) { killed::enter_fully(head.task) } else { None };
    match operation {
        Operation::Read(how) => bytes::read(front, exchange, how),
        Operation::Write { how, .. } => bytes::write(front, exchange, how),
        Operation::Ioctl { .. } => orders::ioctl(front, exchange),
        Operation::Lseek(how) => bytes::seek(front, exchange, how),
        Operation::Readdir(how) => bytes::list(front, exchange, how, false),
        Operation::Readdirplus(how) => bytes::list(front, exchange, how, true),
        Operation::Forget(forgets) => {
            let forget_all = || {
                forgets.for_each(|one| front.forget(one.node, one.lookups));
                Ok(())
            };
            let _ = front.guarded("forget", head.node, forget_all);
            exchange.dismiss();
        }
        Operation::NotifyReply => exchange.dismiss(),
        operation => {
            let answer =
                front.guarded(kind_name(head.opcode), head.node, || work(front, &head, operation));
            exchange.reply(answer);
        }
    }
}

/// Handles the requests that have short answers.
fn work(front: &Arc<FrontEnd>, head: &Head, operation: Operation<'_>) -> Answer<Reply> {
    let (node, caller) = (head.node, caller(head));
    let done = |()| Reply::Done;
    match operation {
        Operation::Lookup { name } => front.lookup(node, name).map(entry),
        Operation::Getattr { has_handle } => {
            let attr = front.getattr(node, has_handle)?;
            Ok(Reply::Attr(AttrOut::new(front.valid_secs(), attr)))
        }
        Operation::Setattr(how) => {
            let (set, asked) = (set_attr(&how), asked(&how));
            let attr = front.setattr(caller, node, set, asked)?;
            Ok(Reply::Attr(AttrOut::new(front.valid_secs(), attr)))
        }
        Operation::Readlink => front.readlink(node).map(Reply::Data),
        Operation::Symlink { name, target } => front.symlink(caller, node, name, target).map(entry),
        Operation::Mknod { how, name } => {
            front.mknod(caller, node, name, how.mode, how.umask, how.rdev).map(entry)
        }
        Operation::Mkdir { how, name } => {
            front.mkdir(caller, node, name, how.mode, how.umask).map(entry)
        }
        Operation::Unlink { name } => front.unlink(node, name).map(done),
        Operation::Rmdir { name } => front.rmdir(node, name).map(done),
        Operation::Rename { name, target, new_name, flags } => {
            front.rename(caller, node, name, target, new_name, flags).map(done)
        }
        Operation::Link { node: linked, name } => front.link(linked, node, name).map(entry),
        Operation::Open(how) => front.open(caller, node, how.flags).map(Reply::Opened),
        Operation::Statfs => front.statfs().map(|sizes| Reply::Statfs(statfs(&sizes))),
        Operation::Release(how) => front.release(node, how.flags).map(done),
        Operation::Fsync => front.fsync(node).map(done),
        Operation::Syncfs => front.sync_all().map(done),
        Operation::Setxattr { name, value, flags } => {
            front.setxattr(caller, node, name, value, flags).map(done)
        }
        Operation::Getxattr { name, room } => Reply::sized(front.getxattr(node, name)?, room),
        Operation::Listxattr { room } => Reply::sized(front.listxattr(caller, node)?, room),
        Operation::Removexattr { name } => front.removexattr(node, name).map(done),
        Operation::Create { how, name } => {
            let made = front.create(caller, node, name, how.mode, how.umask, how.flags)?;
            Ok(Reply::Created(made.entry.wire(), made.flags))
        }
        Operation::Tmpfile(how) => {
            let made = front.tmpfile(caller, node, how.mode, how.umask, how.flags)?;
            Ok(Reply::Created(made.entry.wire(), made.flags))
        }
        Operation::Statx(how) => {
            let told = front.statx(node, how.has_handle())?;
            Ok(Reply::Statx(Box::new(told)))
        }
        Operation::Destroy => {
            front.close();
            Ok(Reply::Done)
        }
        Operation::Releasedir => Ok(Reply::Done),
        // With no flags set, the kernel caches no listing, and each listing reaches the server.
        Operation::Opendir if front.options.strict_access => {
            Ok(Reply::Opened(OpenFlags::default()))
        }
        Operation::Fallocate(how) => {
            front.fallocate(caller, node, how.offset, how.len, how.mode).map(done)
        }
        Operation::CopyRange { how, is_wide } => {
            let (from, to) = ((node, how.from), (how.target, how.to));
            if is_wide {
                return front.copy_range(caller, from, to, how.len).map(Reply::Copied);
            }
            let len = how.len.min(NARROW_COPY_MAX);
            let count = front.copy_range(caller, from, to, len)?;
            u32::try_from(count).map(Reply::Written).map_err(|_| Errno::EIO)
        }
        // All other requests, such as FLUSH, OPENDIR and ACCESS. After `ENOSYS` the kernel does not
        // send requests of the same kind again. The server needs none of them. Closing a file makes
        // nothing durable, and a write that could fail has failed before. Listings keep no state
        // here. The kernel itself checks permissions.
        _ => Err(Errno::ENOSYS),
    }
}

/// Whether a request gives up its waits if its caller is killed (writes are handled elsewhere). A
/// request that closes a file, or only sets a file's times, never gives up (`killed::K3`).
fn gives_up(operation: &Operation<'_>) -> bool {
    match operation {
        // A truncation forgets dirty data before it reads. A mode changes in several steps.
        Operation::Setattr(_)
        | Operation::Forget(_)
        | Operation::NotifyReply
        | Operation::Write { .. }
        | Operation::Ioctl { .. }
        | Operation::Release(_)
        | Operation::Releasedir
        | Operation::Statfs
        | Operation::Destroy => false,
        _ => true,
    }
}

fn caller(head: &Head) -> Caller {
    Caller { uid: head.uid, gid: head.gid, task: head.task }
}

fn entry(entry: crate::front_end::Entry) -> Reply {
    Reply::Entry(entry.wire())
}

/// How a request asks for times.
fn asked(how: &SetattrIn) -> TimesRequest {
    let valid = how.valid();
    TimesRequest {
        has_handle: valid.contains(SetattrFlags::HANDLE),
        is_access_now: valid.contains(SetattrFlags::ATIME_NOW),
        is_change_now: valid.contains(SetattrFlags::MTIME_NOW),
    }
}

/// New attributes, in the volume's form.
fn set_attr(how: &SetattrIn) -> SetAttr {
    let valid = how.valid();
    let has = |flag: SetattrFlags| valid.contains(flag);
    let time = |flag, now, time| {
        has(flag).then(|| if has(now) { buttress_fs::now() } else { time_from_wire(time) })
    };
    SetAttr {
        mode: has(SetattrFlags::MODE).then_some(how.mode),
        uid: has(SetattrFlags::UID).then_some(how.uid),
        gid: has(SetattrFlags::GID).then_some(how.gid),
        size: has(SetattrFlags::SIZE).then_some(how.size),
        atime: time(SetattrFlags::ATIME, SetattrFlags::ATIME_NOW, how.atime()),
        mtime: time(SetattrFlags::MTIME, SetattrFlags::MTIME_NOW, how.mtime()),
        ctime: has(SetattrFlags::CTIME).then(|| time_from_wire(how.ctime())),
        ..SetAttr::default()
    }
}

/// Inodes are made as they are needed, so the answer names no limit for them.
fn statfs(sizes: &buttress_fs::StatFs) -> StatfsOut {
    let buttress_fs::StatFs { blocks, blocks_free, blocks_available, .. } = *sizes;
    StatfsOut::new(blocks, blocks_free, blocks_available, sizes.block_size, sizes.name_max)
}
