//! Tests: the answers that a driver sends, and the programs that they wake.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_protocol::opcode;

use super::abi::{self, Header};
use super::moves::Moves;
use super::port::{Bell, Done, Given, Port};
use super::queue::Queue;
use crate::exchange::Exchange;

/// Requests for the entries of a queue, in order.
struct Requests {
    asked: VecDeque<u32>,
    headers: Vec<usize>,
    done: VecDeque<u16>,
}

/// A port to a kernel that has requests only when the driver waits.
struct TestPort(Arc<Mutex<Requests>>);

struct Silent;

impl Bell for Silent {
    fn ring(&self) {}
}

impl Port for TestPort {
    #[expect(unsafe_code, reason = "the memory is written later")]
    unsafe fn give(&mut self, given: Given<'_>) {
        if given.command == abi::REGISTER {
            self.0.lock().headers.push(given.areas[0][0]);
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    #[expect(unsafe_code, reason = "as the kernel does")]
    fn wait(&mut self) {
        let mut requests = self.0.lock();
        let Requests { asked, headers, done } = &mut *requests;
        for (index, opcode) in asked.drain(..).enumerate() {
            let header = headers[index] as *mut Header;
            // SAFETY: the kernel owns the entry, and its header lives as long as the queue.
            unsafe { &mut *header }.ask(opcode, index as u64, 1, 0);
            done.push_back(index as u16);
        }
    }

    fn done(&mut self) -> Option<Done> {
        self.0.lock().done.pop_front().map(Done::Request)
    }
}

/// How many programs the answers to these requests wake.
fn woken_by(opcodes: &[u32]) -> usize {
    let requests = Requests {
        asked: opcodes.iter().copied().collect(),
        headers: Vec::new(),
        done: VecDeque::new(),
    };
    let requests = Arc::new(Mutex::new(requests));
    let port = (Box::new(TestPort(Arc::clone(&requests))) as _, Box::new(Silent) as _);
    let queue = Queue::new(port, &[(0, opcodes.len())], Arc::new(Moves::none())).expect("a queue");
    let queue = Arc::new(queue);
    queue.register().expect("no refusal");
    let mut driver = queue.lock_driver();
    for _ in opcodes {
        let taken = queue.next(&mut driver).expect("a request");
        taken.answer(Ok(0));
    }
    queue.answer_all(&mut driver);
    let woken = driver.unsent();
    drop(driver);
    woken
}

/// A program does not wait for the release of a file. So if it closes a file and opens the next
/// one, one answer wakes it, and that answer may leave it on its processor.
#[test]
fn a_release_wakes_no_program() {
    assert_eq!(woken_by(&[opcode::RELEASE, opcode::OPEN]), 1);
    assert_eq!(woken_by(&[opcode::RELEASEDIR, opcode::RELEASE]), 0);
    assert_eq!(woken_by(&[opcode::OPEN, opcode::LOOKUP]), 2);
}
