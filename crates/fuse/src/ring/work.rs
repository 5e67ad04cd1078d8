//! Requests that come often, worked out without the protocol library: from an entry's memory, and back into it.
//!
//! What is not named here goes over the bridge. Layouts are those of the kernel's `include/uapi/linux/fuse.h`.

use fuser::{Errno, RenameFlags, WriteFlags};

use super::abi::PAYLOAD_LEN;
use super::queue::Taken;
use super::wire::{List, asked, attr_out, entry_out, open_out, set_attr, sized, valid, words};
use crate::crew::Kind;
use crate::dispatch::Desk;
use crate::door::content::{Read, Seek, Write, Written};
use crate::door::leaving::Awaited;
use crate::door::{Answer, VALID};
use crate::killed;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const SYMLINK: u32 = 6;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const RMDIR: u32 = 11;
const RENAME: u32 = 12;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const GETXATTR: u32 = 22;
const READDIR: u32 = 28;
const CREATE: u32 = 35;
const FALLOCATE: u32 = 43;
const READDIRPLUS: u32 = 44;
const RENAME2: u32 = 45;
const LSEEK: u32 = 46;

/// `FUSE_GETATTR_FH`: it is asked on behalf of an open file.
const HAS_HANDLE: u32 = 1;

/// `FUSE_READ_LOCKOWNER`: the read is direct.
const READ_LOCKOWNER: u32 = 1 << 1;

/// What a request may cost; none if it is for the library.
pub(super) fn kind(taken: &Taken) -> Option<Kind> {
    let op = taken.header().op();
    let len = |at: usize| op.u32(at) as usize;
    Some(match taken.request().opcode {
        LOOKUP | GETATTR | SYMLINK | MKDIR | UNLINK | RMDIR | RENAME | OPEN | RELEASE | CREATE
        | RENAME2 | LSEEK => Kind::Meta,
        SETATTR if op.u32(0) & valid::SIZE == 0 => Kind::Meta,
        SETATTR | FALLOCATE => Kind::Space,
        READ => Kind::read(len(16)),
        WRITE => Kind::write(len(16)),
        FSYNC => Kind::Sync,
        GETXATTR | READDIR | READDIRPLUS => Kind::List,
        _ => return None,
    })
}

/// Whether many bytes come or go with it.
pub(super) fn is_large(taken: &Taken) -> bool {
    matches!(kind(taken), Some(Kind::ReadLarge | Kind::WriteLarge))
}

/// Whether a request, other than a write, may wait for space as long as somebody waits for its answer. What makes data durable is
/// not given up, nor what says when a file was written (K3 of `killed`).
fn may_wait(opcode: u32) -> bool {
    matches!(opcode, SYMLINK | MKDIR | RENAME | RENAME2 | CREATE | FALLOCATE)
}

/// Works a request out and answers it; a panic is answered with `EIO`.
pub(super) fn work(desk: &Desk, mut taken: Taken) {
    let request = taken.request();
    let (node, caller, op) = (request.node, request.caller, taken.header().op());
    let _heeding = may_wait(request.opcode).then(|| killed::heed(request.task));
    let answer: Answer<Vec<u8>> = match request.opcode {
        READ => return read(desk, taken),
        WRITE => return write(desk, taken),
        LSEEK => return seek(desk, taken),
        READDIR | READDIRPLUS => return list(desk, taken),
        LOOKUP => desk.guarded("lookup", node, || {
            let [name] = names(&taken)?;
            desk.lookup(node, name).map(|entry| entry_out(&entry, VALID))
        }),
        GETATTR => desk.guarded("getattr", node, || {
            desk.getattr(node, op.u32(0) & HAS_HANDLE != 0).map(|attr| attr_out(&attr))
        }),
        SETATTR => desk.guarded("setattr", node, || {
            desk.setattr(caller, node, set_attr(op), asked(op)).map(|attr| attr_out(&attr))
        }),
        SYMLINK => desk.guarded("symlink", node, || {
            let [name, target] = names(&taken)?;
            desk.symlink(caller, node, name, target).map(|entry| entry_out(&entry, VALID))
        }),
        MKDIR => desk.guarded("mkdir", node, || {
            let [name] = names(&taken)?;
            desk.mkdir(caller, node, name, op.u32(0), op.u32(4))
                .map(|entry| entry_out(&entry, VALID))
        }),
        UNLINK => desk.guarded("unlink", node, || {
            let [name] = names(&taken)?;
            desk.unlink(node, name).map(|()| Vec::new())
        }),
        RMDIR => desk.guarded("rmdir", node, || {
            let [name] = names(&taken)?;
            desk.rmdir(node, name).map(|()| Vec::new())
        }),
        RENAME | RENAME2 => desk.guarded("rename", node, || {
            let [old, new] = names(&taken)?;
            let flags = if request.opcode == RENAME2 { op.u32(8) } else { 0 };
            let flags = RenameFlags::from_bits_retain(flags);
            desk.rename(node, old, op.u64(0), new, flags).map(|()| Vec::new())
        }),
        OPEN => desk.guarded("open", node, || {
            desk.open(caller, node, op.i32(0)).map(|flags| open_out(flags.bits()))
        }),
        RELEASE => {
            desk.guarded("release", node, || desk.release(node, op.i32(8)).map(|()| Vec::new()))
        }
        FSYNC => desk.guarded("fsync", node, || desk.fsync(node).map(|()| Vec::new())),
        GETXATTR => desk.guarded("getxattr", node, || {
            let [name] = names(&taken)?;
            sized(desk.getxattr(node, name)?, op.u32(0))
        }),
        CREATE => desk.guarded("create", node, || {
            let [name] = names(&taken)?;
            let made = desk.create(caller, node, name, op.u32(4), op.u32(8), op.i32(0))?;
            let mut bytes = entry_out(&made.entry, VALID);
            bytes.extend(open_out(made.flags.bits()));
            Ok(bytes)
        }),
        FALLOCATE => desk.guarded("fallocate", node, || {
            desk.fallocate(caller, node, op.u64(8), op.u64(16), op.i32(24)).map(|()| Vec::new())
        }),
        _ => Err(Errno::ENOSYS),
    };
    let answer = answer.map(|bytes| {
        taken.room()[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    });
    taken.answer(answer);
}

/// Answers a read with what is read into the entry's memory.
fn read(desk: &Desk, mut taken: Taken) {
    let node = taken.request().node;
    let op = taken.header().op();
    let (offset, len) = (op.u64(8), op.u32(16) as usize);
    let is_direct = op.u32(20) & READ_LOCKOWNER != 0;
    if len > PAYLOAD_LEN {
        return taken.answer(Err(Errno::EINVAL));
    }
    let room = &mut taken.room()[..len];
    match desk.guarded("read", node, || desk.read_into(node, offset, room, is_direct)) {
        Ok(Read::Bytes(count)) => taken.answer(Ok(count)),
        Ok(Read::Behind(file)) => {
            let Some(patience) = desk.leave().zip(taken.patience()) else {
                let count = file.read_known(offset, &mut taken.room()[..len]);
                return taken.answer(count);
            };
            desk.after_flush(node, move || {
                let count = file.read(offset, &mut taken.room()[..len]);
                // Who has the answer may ask again at once.
                drop(patience);
                taken.answer(count);
            });
        }
        Err(errno) => taken.answer(Err(errno)),
    }
}

/// Answers a write of what is in the entry's memory.
fn write(desk: &Desk, taken: Taken) {
    let node = taken.request().node;
    let op = taken.header().op();
    let len = op.u32(16) as usize;
    let how = WriteFlags::from_bits_retain(op.u32(20));
    let caller = taken.request().caller;
    let write = Write { node, offset: op.u64(8), how, flags: op.i32(32), caller };
    let task = taken.request().task;
    let _heeding = killed::heed_write(task, how);
    match desk.guarded("write", node, || desk.write(write, front(&taken, len)?)) {
        Ok(Written::Bytes(count)) => answer_written(desk, taken, write, count),
        Ok(Written::Waits(for_room)) => {
            // What makes room may need an entry (R7).
            let of_entry = taken.patience();
            if of_entry.is_none() && for_room.awaited == Awaited::Release {
                return answer_write(taken, desk.write_in_vain(write));
            }
            let there = desk.clone();
            desk.where_room_comes(move || {
                let _heeding = killed::heed_write(task, how);
                let work = || there.write_aside(write, front(&taken, len)?, &for_room);
                let answer = there.guarded("write", node, work);
                drop(of_entry);
                match answer {
                    Ok(count) => answer_written(&there, taken, write, count),
                    Err(errno) => answer_write(taken, Err(errno)),
                }
            });
        }
        Err(errno) => answer_write(taken, Err(errno)),
    }
}

/// So many bytes of a payload, if they are there.
fn front(taken: &Taken, len: usize) -> Answer<&[u8]> {
    taken.payload().get(..len).ok_or(Errno::EINVAL)
}

/// Answers a write that was done, once the kernel holds nothing that is older.
fn answer_written(desk: &Desk, taken: Taken, write: Write, count: u32) {
    let Some(old) = desk.old_pages(write, count) else { return answer_write(taken, Ok(count)) };
    match desk.leave().zip(taken.patience()) {
        Some(patience) => desk.drop_pages(old, move || {
            drop(patience);
            answer_write(taken, Ok(count));
        }),
        None => {
            answer_write(taken, Ok(count));
            desk.drop_pages(old, || ());
        }
    }
}

fn answer_write(mut taken: Taken, written: Answer<u32>) {
    let answer = written.map(|count| {
        let bytes = words(&[count, 0]);
        taken.room()[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    });
    taken.answer(answer);
}

/// Answers where data or a hole is.
fn seek(desk: &Desk, taken: Taken) {
    let node = taken.request().node;
    let op = taken.header().op();
    let (offset, whence) = (op.u64(8).cast_signed(), op.i32(16));
    match desk.guarded("lseek", node, || desk.seek_now(node, offset, whence)) {
        Ok(Seek::Behind(file)) => {
            let Some(patience) = taken.patience() else {
                // Who is told that nobody knows reads everything.
                return answer_seek(taken, Err(Errno::EINVAL));
            };
            desk.after_flush(node, move || {
                let found = file.seek(offset, whence);
                drop(patience);
                answer_seek(taken, found);
            });
        }
        Ok(Seek::At(offset)) => answer_seek(taken, Ok(offset)),
        Err(errno) => answer_seek(taken, Err(errno)),
    }
}

fn answer_seek(mut taken: Taken, found: Answer<i64>) {
    let answer = found.map(|offset| {
        let bytes = offset.to_ne_bytes();
        taken.room()[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    });
    taken.answer(answer);
}

/// Answers a listing with what is written into the entry's memory.
fn list(desk: &Desk, mut taken: Taken) {
    let request = taken.request();
    let node = request.node;
    let op = taken.header().op();
    let (position, len) = (op.u64(8), op.u32(16) as usize);
    let room = taken.room();
    let len = len.min(room.len());
    let mut list = List::new(&mut room[..len]);
    let listed = match request.opcode {
        READDIR => desk.guarded("readdir", node, || desk.readdir(node, position, &mut list)),
        _ => desk.guarded("readdirplus", node, || desk.readdirplus(node, position, &mut list)),
    };
    let len = list.len();
    taken.answer(listed.map(|()| len));
}

/// The names in a payload: each ends with a zero byte.
fn names<const N: usize>(taken: &Taken) -> Answer<[&[u8]; N]> {
    let mut parts = taken.payload().split(|&byte| byte == 0);
    let mut names = [&[][..]; N];
    for name in &mut names {
        *name = parts.next().ok_or(Errno::EINVAL)?;
    }
    // Without the last zero byte the last name would be cut.
    parts.next().ok_or(Errno::EINVAL)?;
    Ok(names)
}
