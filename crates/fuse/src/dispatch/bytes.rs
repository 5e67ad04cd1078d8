//! Requests that read or write many bytes, or have an answer that may have to wait.
//!
//! Bytes are read into the transport's memory and written from there: nothing copies them.

use std::sync::Arc;

use buttress_protocol::{Errno, Listing, LseekIn, Operation, ReadIn, Reply, WriteIn};

use super::caller;
use crate::errno::Answer;
use crate::exchange::Exchange;
use crate::front_end::FrontEnd;
use crate::front_end::content::{Read, Reading, Seek, Write, Written};
use crate::front_end::space::AwaitedRequest;
use crate::killed;

/// Answers a read.
pub(super) fn read<X: Exchange>(front: &Arc<FrontEnd>, mut exchange: X, how: ReadIn) {
    let node = exchange.head().node;
    let (offset, len) = (how.offset, how.size as usize);
    let reading = Reading { is_direct: how.is_direct(), flags: how.flags };
    let Some(buffer) = exchange.answer_buffer().get_mut(..len) else {
        return exchange.answer(Err(Errno::EINVAL));
    };
    match front.guarded("read", node, || front.read_into(node, offset, buffer, reading)) {
        Ok(Read::Bytes(count)) => exchange.answer(Ok(count)),
        Ok(Read::Behind(file)) => {
            let Some(permits) = front.wait_permit().zip(exchange.hold_permit()) else {
                let count = file.read_known(offset, &mut exchange.answer_buffer()[..len]);
                return exchange.answer(count);
            };
            front.after_flush(node, move || {
                let count = file.read(offset, &mut exchange.answer_buffer()[..len]);
                // Return the permits before the answer is sent. The program may send its next
                // request right after the answer, and that request may need a permit.
                drop(permits);
                exchange.answer(count);
            });
        }
        Err(errno) => exchange.answer(Err(errno)),
    }
}

/// Answers a write.
pub(super) fn write<X: Exchange>(front: &Arc<FrontEnd>, exchange: X, how: WriteIn) {
    let head = exchange.head();
    let (node, task) = (head.node, head.task);
    let caller = caller(&head);
    let write = Write { node, offset: how.offset, how: how.how(), flags: how.flags, caller };
    let _scope = killed::enter_write(task, write.how);
    match front.guarded("write", node, || front.write(write, data(&exchange)?)) {
        Ok(Written::Bytes(count)) => answer_written(front, exchange, write, count),
        Ok(Written::MustWait(space_permit)) => {
            // The request that frees space may need an entry of the ring (`ring::queue::R7`).
            let hold_permit = exchange.hold_permit();
            if hold_permit.is_none() && space_permit.awaited == AwaitedRequest::Release {
                return exchange.reply(front.write_in_vain(write).map(Reply::Written));
            }
            let there = Arc::clone(front);
            front.on_space_thread(move || {
                let _scope = killed::enter_write(task, write.how);
                let work = || there.write_aside(write, data(&exchange)?, &space_permit);
                let answer = there.guarded("write", node, work);
                drop(hold_permit);
                match answer {
                    Ok(count) => answer_written(&there, exchange, write, count),
                    Err(errno) => exchange.answer(Err(errno)),
                }
            });
        }
        Err(errno) => exchange.answer(Err(errno)),
    }
}

/// The bytes of a write.
fn data<X: Exchange>(exchange: &X) -> Answer<&[u8]> {
    let head = exchange.head();
    match Operation::decode(head.opcode, head.node, exchange.parts())? {
        Operation::Write { data, .. } => Ok(data),
        _ => Err(Errno::EINVAL),
    }
}

/// Answers a finished write after the kernel has dropped older pages (`front_end::content::C4`). If
/// too many requests wait already, the answer is sent before the drop.
fn answer_written<X: Exchange>(front: &Arc<FrontEnd>, exchange: X, write: Write, count: u32) {
    let Some(old) = front.old_pages(write, count) else {
        return exchange.reply(Ok(Reply::Written(count)));
    };
    match front.wait_permit().zip(exchange.hold_permit()) {
        Some(permits) => {
            let exchange = exchange.set_aside();
            front.drop_pages(old, move || {
                drop(permits);
                exchange.reply(Ok(Reply::Written(count)));
            });
        }
        None => {
            exchange.reply(Ok(Reply::Written(count)));
            front.drop_pages(old, || ());
        }
    }
}

/// Answers a search for data or a hole.
pub(super) fn seek<X: Exchange>(front: &Arc<FrontEnd>, exchange: X, how: LseekIn) {
    let node = exchange.head().node;
    let LseekIn { offset, whence, .. } = how;
    match front.guarded("lseek", node, || front.seek_now(node, offset, whence)) {
        Ok(Seek::Behind(file)) => {
            let Some(hold_permit) = exchange.hold_permit() else {
                // After `EINVAL`, programs read the whole file instead of searching it.
                return exchange.answer(Err(Errno::EINVAL));
            };
            let exchange = exchange.set_aside();
            front.after_flush(node, move || {
                let found = file.seek(offset, whence);
                drop(hold_permit);
                exchange.reply(found.map(Reply::Found));
            });
        }
        Ok(Seek::At(offset)) => exchange.reply(Ok(Reply::Found(offset))),
        Err(errno) => exchange.answer(Err(errno)),
    }
}

/// Answers a listing, with attributes or without.
pub(super) fn list<X: Exchange>(
    front: &Arc<FrontEnd>,
    mut exchange: X,
    how: ReadIn,
    has_attr: bool,
) {
    let (node, position) = (exchange.head().node, how.offset);
    let buffer = exchange.answer_buffer();
    let len = buffer.len().min(how.size as usize);
    let mut list = Listing::new(&mut buffer[..len]);
    let listed = match has_attr {
        false => front.guarded("readdir", node, || front.readdir(node, position, &mut list)),
        true => front.guarded("readdirplus", node, || front.readdirplus(node, position, &mut list)),
    };
    let len = list.len();
    exchange.answer(listed.map(|()| len));
}
