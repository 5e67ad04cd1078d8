//! A server of files in memory. It shows what the transport costs without a volume.
//!
//! # Place
//!
//! This server is the baseline of measurements. It uses the transports, flags and threads of a
//! mounted volume, and lets the kernel cache answers for as long as a mounted volume does. So the
//! kernel sends the same requests, and the difference to a mounted volume is the cost of the
//! engine.
//!
//! # What must hold
//!
//! - This server is not for real data. It checks little, and all content is lost when it ends.

mod memory;

use std::path::Path;
use std::sync::Arc;

use buttress_protocol::{
    AttrOut, EntryOut, Errno, Listing, OpenFlags, Operation, Reply, StatfsOut,
};

use crate::device::{Device, Message};
use crate::exchange::Exchange;
use crate::front_end::VALID_SECS;
use crate::mount::{Link, Mount};
use crate::pool::{Kind, WorkerPool};
use crate::ring::{RequestHandler, Ring, Taken};
use crate::session::{BESIDE_RINGS, rings};
use crate::{Error, Options, counts, dispatch};

use memory::Memory;

/// Mounts an empty server on a directory, and serves until the mount is gone. `ready` is called
/// when programs may use the mount.
///
/// # Errors
///
/// The errors of [`mount`](crate::mount).
pub fn serve_empty(target: &Path, options: &Options, ready: impl FnOnce()) -> Result<(), Error> {
    let (mount, device, _) = Mount::new(target, options)?;
    let link = Link::new(&device).map_err(Error::Session)?;
    let rings = rings(options);
    let is_ring = rings.is_some();
    let threads = if is_ring { BESIDE_RINGS } else { options.thread_count() };
    let pool = WorkerPool::new(link, if is_ring { 1 } else { threads }, options);
    let options = Options { io_uring: Some(is_ring), ..options.clone() };
    let for_ring = device.try_clone().map_err(Error::Session)?;
    let (device, _) =
        Device::negotiate(device, &dispatch::terms(&options)).map_err(Error::Session)?;
    let memory = Arc::new(Memory::default());
    let handler = MemoryHandler(Arc::clone(&memory));
    let ring = rings.map(|rings| rings.start(&for_ring, Box::new(handler), options.thread_count()));
    let ring = ring.transpose().map_err(Error::Session)?;
    drop(for_ring);
    ready();
    let served = device.serve(threads, move |message: Message| {
        let kind = dispatch::kind(&message.head(), message.parts());
        if kind == Kind::Trifle {
            serve(&memory, message);
            return pool.trifle_done();
        }
        let _guard = pool.guard(kind, message.head().task);
        serve(&memory, message);
    });
    ring.into_iter().for_each(Ring::join);
    drop(mount);
    served.map_err(Error::Session)
}

/// Answers the requests of a ring.
struct MemoryHandler(Arc<Memory>);

impl RequestHandler for MemoryHandler {
    fn kind(&self, taken: &Taken) -> Kind {
        dispatch::kind(&taken.head(), taken.parts())
    }

    fn work(&self, taken: Taken) {
        serve(&self.0, taken);
    }
}

/// Handles a request and answers it.
fn serve<X: Exchange>(memory: &Memory, mut exchange: X) {
    let head = exchange.head();
    counts::count(head.opcode);
    let operation = match Operation::decode(head.opcode, head.node, exchange.parts()) {
        Ok(operation) => operation,
        Err(errno) => return exchange.answer(Err(errno)),
    };
    match operation {
        Operation::Read(how) => {
            let buffer = exchange.answer_buffer();
            let len = buffer.len().min(how.size as usize);
            let count = memory.read(head.node, how.offset, &mut buffer[..len]);
            exchange.answer(count);
        }
        Operation::Readdir(how) => {
            let buffer = exchange.answer_buffer();
            let len = buffer.len().min(how.size as usize);
            let mut list = Listing::new(&mut buffer[..len]);
            let listed = memory.list(head.node, how.offset, |file, position, name| {
                list.add_name(file.ino, position, memory::kind_of(file.mode), name)
            });
            let len = list.len();
            exchange.answer(listed.map(|()| len));
        }
        Operation::Readdirplus(how) => {
            let buffer = exchange.answer_buffer();
            let len = buffer.len().min(how.size as usize);
            let mut list = Listing::new(&mut buffer[..len]);
            let listed = memory.list(head.node, how.offset, |file, position, name| {
                list.add_entry(&EntryOut::new(file.ino, 0, VALID_SECS, file), position, name)
            });
            let len = list.len();
            exchange.answer(listed.map(|()| len));
        }
        Operation::Forget(forgets) => {
            forgets.for_each(|one| memory.forget(one.node));
            exchange.dismiss();
        }
        Operation::NotifyReply => exchange.dismiss(),
        operation => {
            let answer = work(memory, head.node, (head.uid, head.gid), operation);
            exchange.reply(answer);
        }
    }
}

/// Handles the requests that have short answers.
fn work(
    memory: &Memory,
    node: u64,
    owner: (u32, u32),
    operation: Operation<'_>,
) -> Result<Reply, Errno> {
    let entry = |attr| Reply::Entry(EntryOut::new(attr_ino(&attr), 0, VALID_SECS, attr));
    let created = |attr| {
        let entry = EntryOut::new(attr_ino(&attr), 0, VALID_SECS, attr);
        Reply::Created(entry, OpenFlags::KEEP_CACHE)
    };
    let done = |()| Reply::Done;
    let make = |name, mode, rdev| memory.make(node, name, mode, owner, rdev, &[]);
    match operation {
        Operation::Lookup { name } => memory.lookup(node, name).map(entry),
        Operation::Getattr { .. } => {
            memory.attr(node).map(|attr| Reply::Attr(AttrOut::new(VALID_SECS, attr)))
        }
        Operation::Setattr(how) => {
            memory.set_attr(node, &how).map(|attr| Reply::Attr(AttrOut::new(VALID_SECS, attr)))
        }
        Operation::Readlink => memory.target(node).map(Reply::Data),
        Operation::Symlink { name, target } => {
            memory.make(node, name, memory::SYMLINK, owner, 0, target).map(entry)
        }
        Operation::Mknod { how, name } => make(name, how.mode & !how.umask, how.rdev).map(entry),
        Operation::Mkdir { how, name } => {
            make(name, memory::DIRECTORY | how.mode & !how.umask, 0).map(entry)
        }
        Operation::Create { how, name } => {
            make(name, memory::REGULAR | how.mode & 0o7777 & !how.umask, 0).map(created)
        }
        Operation::Unlink { name } | Operation::Rmdir { name } => {
            memory.remove(node, name).map(done)
        }
        Operation::Rename { name, target, new_name, .. } => {
            memory.rename(node, name, target, new_name).map(done)
        }
        Operation::Link { node: linked, name } => memory.link(linked, node, name).map(entry),
        Operation::Open(how) => {
            let is_truncating = how.flags & memory::TRUNCATE != 0;
            memory.open(node, is_truncating).map(|()| Reply::Opened(OpenFlags::KEEP_CACHE))
        }
        Operation::Write { how, data } => {
            memory.write(node, how.offset, data)?;
            Ok(Reply::Written(how.size))
        }
        Operation::Statfs => {
            let blocks = 1 << 30;
            Ok(Reply::Statfs(StatfsOut::new(blocks, blocks, blocks, 4096, 255)))
        }
        Operation::Getxattr { .. } => Err(Errno::ENODATA),
        Operation::Listxattr { room } => Reply::sized(Vec::new(), room),
        Operation::Release(_)
        | Operation::Releasedir
        | Operation::Fsync
        | Operation::Syncfs
        | Operation::Destroy
        // The value is not kept.
        | Operation::Setxattr { .. }
        | Operation::Removexattr { .. } => Ok(Reply::Done),
        _ => Err(Errno::ENOSYS),
    }
}

/// The number of a node; zero for a missing name.
fn attr_ino(attr: &buttress_protocol::Attr) -> u64 {
    attr.ino
}
