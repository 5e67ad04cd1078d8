//! Rare requests, worked out by the protocol library as if they had come through the device.
//!
//! A pair of sockets stands for the device: one message is a request, one message an answer.
//!
//! # Invariants
//!
//! - **B1** What is passed is answered: by the library, or with `EIO` when that has ended.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use fuser::{Config, Errno, SessionACL};
use parking_lot::Mutex;
use rustix::net;

use super::abi::{IN_LEN, OUT_LEN};
use super::queue::Taken;
use crate::dispatch::Desk;

/// Threads of the library: rare requests may take long.
const THREADS: usize = 4;
/// No answer is longer: values of attributes and lists of their names have 64 KiB at most. A socket takes one message of this.
const ANSWER_MAX: usize = 96 << 10;
/// Protocol 7.42, the first that knows rings.
const VERSION: [u32; 2] = [7, 42];
const INIT: u32 = 26;

/// A way to the protocol library and back.
pub(super) struct Bridge {
    near: Arc<OwnedFd>,
    waiting: Arc<Mutex<HashMap<u64, Taken>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Bridge {
    /// Has the library serve a connection that is none of the kernel's.
    pub(super) fn new(desk: &Desk) -> io::Result<Self> {
        let (near, far) = net::socketpair(
            net::AddressFamily::UNIX,
            net::SocketType::SEQPACKET,
            net::SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::io::write(&near, &hello())?;
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let session = fuser::Session::from_fd(desk.clone(), far, SessionACL::All, config)?;
        let mut greeting = [0; 256];
        rustix::io::read(&near, &mut greeting)?;
        let near = Arc::new(near);
        let waiting: Arc<Mutex<HashMap<u64, Taken>>> = Arc::default();
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let library = named("fuse-ring-rare").spawn(move || {
            if let Err(error) = session.run() {
                tracing::debug!(%error, "nobody asks for rare things any more");
            }
        })?;
        let (answers, asked) = (Arc::clone(&near), Arc::clone(&waiting));
        let returns = named("fuse-ring-back").spawn(move || take_answers(&answers, &asked))?;
        Ok(Self { near, waiting, threads: Mutex::new(vec![library, returns]) })
    }

    /// Has a request worked out by the library.
    pub(super) fn pass(&self, taken: Taken) {
        let Some([head, fixed]) = taken.header().as_message() else {
            return taken.answer(Err(Errno::EIO));
        };
        let unique = taken.request().unique;
        let mut message = Vec::with_capacity(head.len() + fixed.len() + taken.payload().len());
        message.extend_from_slice(head);
        message.extend_from_slice(fixed);
        message.extend_from_slice(taken.payload());
        // The answer may come before the call has returned.
        self.waiting.lock().insert(unique, taken);
        if let Err(error) = rustix::io::retry_on_intr(|| rustix::io::write(&self.near, &message)) {
            tracing::warn!(%error, "a request could not be passed on");
            drop(self.waiting.lock().remove(&unique));
        }
    }

    /// Ends the connection.
    pub(super) fn end(&self) {
        let _ = net::shutdown(&self.near, net::Shutdown::Both);
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.end();
    }
}

fn take_answers(near: &OwnedFd, waiting: &Mutex<HashMap<u64, Taken>>) {
    let mut message = vec![0; OUT_LEN + ANSWER_MAX];
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(near, &mut message)) {
            Ok(len) if len >= OUT_LEN => {
                let error = i32::from_ne_bytes(message[4..8].try_into().expect("four bytes"));
                let unique = u64::from_ne_bytes(message[8..16].try_into().expect("eight bytes"));
                let Some(mut taken) = waiting.lock().remove(&unique) else { continue };
                let payload = &message[OUT_LEN..len];
                taken.room()[..payload.len()].copy_from_slice(payload);
                taken.answer(if error == 0 {
                    Ok(payload.len())
                } else {
                    Err(Errno::from_i32(-error))
                });
            }
            _ => {
                // B1: each says so when it is dropped.
                let left = std::mem::take(&mut *waiting.lock());
                return drop(left);
            }
        }
    }
}

/// What a kernel says first: its version, and that it can do nothing in particular. What the door and the kernel agreed
/// upon they agreed upon through the device.
fn hello() -> Vec<u8> {
    /// `fuse_init_in`: version, readahead, flags and room for more, bytes.
    const INIT_LEN: usize = 64;
    let mut message = Vec::new();
    message.extend(((IN_LEN + INIT_LEN) as u32).to_ne_bytes());
    message.extend(INIT.to_ne_bytes());
    message.extend(1u64.to_ne_bytes());
    message.resize(IN_LEN, 0);
    message.extend(VERSION.iter().flat_map(|number| number.to_ne_bytes()));
    message.extend(u32::MAX.to_ne_bytes());
    message.resize(IN_LEN + INIT_LEN, 0);
    message
}
