//! Commands of ioctl(2): which thread answers them.

use std::sync::Arc;

use buttress_protocol::btrfs::Command;
use buttress_protocol::{Errno, Operation, Reply};

use super::caller;
use crate::errno::Answer;
use crate::exchange::Exchange;
use crate::front_end::{FrontEnd, flags};
use crate::killed;
use crate::notifier_threads::ROOT_UID;

/// Answers a command. A command that may take long runs on a thread that serves no requests. Such a
/// command may wait for the kernel, and the kernel may first send requests and wait for their
/// answers.
pub(super) fn ioctl<X: Exchange>(front: &Arc<FrontEnd>, exchange: X) {
    let head = exchange.head();
    let may_take_minutes = match read(&exchange) {
        Ok((_, Some(command), _)) if command.may_take_long() => command.may_take_minutes(),
        Ok((number, None, _)) if flags::waits_for_commit(number) => false,
        Ok((number, None, _)) if flags::may_take_minutes(number) => true,
        Ok((_, Some(command), _)) => {
            let tell = || front.answer_from_memory(caller(&head), head.node, command);
            let answer = front.guarded("ioctl", head.node, tell);
            return exchange.reply(answer);
        }
        Ok((number, None, argument)) => {
            let _scope = killed::enter(head.task);
            let flags = || front.ioctl(caller(&head), head.node, number, argument);
            let answer = front.guarded("ioctl", head.node, flags).map(Reply::Ioctl);
            return exchange.reply(answer);
        }
        Err(errno) => return exchange.reply(Err(errno)),
    };
    let Some(place) = front.order_place(head.uid, may_take_minutes) else {
        return exchange.reply(Err(Errno::EBUSY));
    };
    // While this command waits, other requests need entries of the ring. The permit leaves at least
    // one for them (`ring::queue::R7`), and some for commands of root.
    let Some(permit) = exchange.order_permit(head.uid == ROOT_UID) else {
        return exchange.reply(Err(Errno::EBUSY));
    };
    let exchange = exchange.set_aside();
    let there = Arc::clone(front);
    place.run(move || {
        let _scope = killed::enter(head.task);
        let answer = there.guarded("ioctl", head.node, || {
            let (number, command, argument) = read(&exchange)?;
            match command {
                Some(command) => there.carry_out(caller(&head), head.node, command, argument),
                None => there.ioctl(caller(&head), head.node, number, argument).map(Reply::Ioctl),
            }
        });
        drop(permit);
        exchange.reply(answer);
    });
}

/// The number of a command, the command if it is a command of btrfs, and the argument.
fn read<X: Exchange>(exchange: &X) -> Answer<(u32, Option<Command<'_>>, &[u8])> {
    let head = exchange.head();
    match Operation::decode(head.opcode, head.node, exchange.parts())? {
        Operation::Ioctl { how, data } => {
            Ok((how.command, Command::decode(how.command, data)?, data))
        }
        _ => Err(Errno::EINVAL),
    }
}
