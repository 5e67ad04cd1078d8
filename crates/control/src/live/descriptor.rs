//! Sends a line over a socket together with a file descriptor.

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends a line. The descriptor goes with the first byte.
pub(super) fn send(mut to: &UnixStream, line: &[u8], given: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let given = [given];
    control.push(SendAncillaryMessage::ScmRights(&given));
    let bytes = [IoSlice::new(line)];
    let sent = sendmsg(to, &bytes, &mut control, SendFlags::NOSIGNAL)?;
    to.write_all(&line[sent..])
}

/// Receives a line of at most `max` bytes, and the descriptor that comes with it.
///
/// # Errors
///
/// If the socket ends or stalls within the line, or the line is longer.
pub(super) fn receive(
    from: &UnixStream,
    max: usize,
) -> std::io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut line, mut given) = (Vec::new(), None);
    while !line.ends_with(b"\n") {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(from, buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                given = descriptors.next().or(given);
            }
        }
        if received.bytes == 0 || line.len() + received.bytes > max {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&bytes[..received.bytes]);
    }
    Ok((line, given))
}
