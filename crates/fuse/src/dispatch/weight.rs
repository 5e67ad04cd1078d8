//! The likely cost of a request, by its kind and its length.

use buttress_protocol::{Head, Operation, Parts, SetattrFlags, opcode};

use crate::pool::Kind;

/// Sorts a request by its likely cost.
pub(crate) fn kind(head: &Head, parts: Parts<'_>) -> Kind {
    use opcode::*;
    match head.opcode {
        READ | WRITE | SETATTR => match Operation::decode(head.opcode, head.node, parts) {
            Ok(Operation::Read(how)) => Kind::read(how.size as usize),
            Ok(Operation::Write { data, .. }) => Kind::write(data.len()),
            Ok(Operation::Setattr(how)) if how.valid().contains(SetattrFlags::SIZE) => Kind::Space,
            _ => Kind::Meta,
        },
        FORGET | BATCH_FORGET => Kind::Forget,
        FSYNC | FSYNCDIR | SYNCFS => Kind::Sync,
        FALLOCATE | COPY_FILE_RANGE | COPY_FILE_RANGE_64 => Kind::Space,
        READDIR | READDIRPLUS | GETXATTR | SETXATTR | LISTXATTR | REMOVEXATTR => Kind::List,
        RELEASE | RELEASEDIR | FLUSH | OPENDIR | ACCESS | INTERRUPT | NOTIFY_REPLY => Kind::Trifle,
        _ => Kind::Meta,
    }
}
