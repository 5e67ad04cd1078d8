//! Reads that wait for the device hold no lock of the file. The reads return no bytes of space that
//! another file got meanwhile.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use buttress_block::{Device, Error};
use buttress_format::{FileExtent, Key, Kind, Logical};
use buttress_fs::{BalanceOptions, FallocateMode, Filesystem, Filter, Inode, InodeFlags, SetAttr};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::room::fill;
use crate::volume::{file_with, memory, mount_with};

/// The length of the reads that the device holds back.
const LEN: usize = 80 << 10;
/// The time limit for work that must end while the device holds a read back.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateState {
    Open,
    Closed,
    Reached,
}

/// The device returns wrong bytes for a sector that is full of this byte.
const ROTTEN: u8 = 0xD3;

/// Holds back the first read of [`LEN`] bytes, before any byte is read. Discarded sectors have
/// wrong bytes at once.
#[derive(Debug)]
struct Gate(Mutex<GateState>, Condvar);

impl Gate {
    fn set(&self, state: GateState) {
        *self.0.lock().expect("a gate") = state;
        self.1.notify_all();
    }

    fn wait_until_reached(&self) {
        let state = self.0.lock().expect("a gate");
        drop(self.1.wait_while(state, |state| *state != GateState::Reached).expect("a gate"));
    }
}

impl Hook for Gate {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if buf.len() == LEN {
            let mut state = self.0.lock().expect("a gate");
            if *state == GateState::Closed {
                *state = GateState::Reached;
                self.1.notify_all();
                drop(self.1.wait_while(state, |state| *state != GateState::Open).expect("a gate"));
            }
        }
        below.read_at(offset, buf)?;
        for sector in buf.chunks_mut(4096).filter(|sector| sector.iter().all(|b| *b == ROTTEN)) {
            sector[100] ^= 1;
        }
        Ok(())
    }

    fn discard(&self, below: &dyn Device, offset: u64, len: u64) -> Result<(), Error> {
        for at in (offset..offset + len).step_by(4096) {
            below.write_at(at, &[0xA5; 512])?;
        }
        Ok(())
    }
}

fn gated(mib: u64, options: &str) -> (Arc<dyn Device>, Arc<Hooked<Gate>>, Filesystem) {
    let below = memory(mib);
    let gate = Hooked::new(&below, Gate(Mutex::new(GateState::Open), Condvar::new()));
    let device: Arc<dyn Device> = Arc::clone(&gate) as _;
    let fs = mount_with(&device, &format!("commit=300,{options}"));
    (below, gate, fs)
}

/// Reads a file from its beginning, and calls `act` while the device holds the request back.
/// Returns the bytes that were read.
fn while_it_reads(gate: &Hooked<Gate>, file: &Inode, act: impl FnOnce() + Send) -> Vec<u8> {
    while_it_reads_so_many(gate, file, LEN, act)
}

fn while_it_reads_so_many(
    gate: &Hooked<Gate>,
    file: &Inode,
    len: usize,
    act: impl FnOnce() + Send,
) -> Vec<u8> {
    gate.hook.set(GateState::Closed);
    thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut buf = vec![0; len];
            let len = file.read_at(0, &mut buf).expect("a read");
            buf.truncate(len);
            buf
        });
        gate.hook.wait_until_reached();
        let acts = scope.spawn(act);
        let begun = Instant::now();
        while !acts.is_finished() && begun.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(1));
        }
        let was_done = acts.is_finished();
        gate.hook.set(GateState::Open);
        acts.join().expect("no panic");
        assert!(was_done, "it waited for a device that another thread reads from");
        reads.join().expect("no panic")
    })
}

/// Ordered extents finish and other threads cut and read a file, while one thread reads from a slow
/// device. The read returns bytes that the file had when the read began or ended.
#[test]
fn no_thread_waits_for_readers() {
    for options in ["rw", "page_cache=0"] {
        let (below, gate, fs) = gated(256, options);
        let file = file_with(&fs.root(), "file", &[1; LEN]);
        let short = file_with(&fs.root(), "short", &[1; LEN]);
        fs.sync().expect("durable");
        let content = while_it_reads(&gate, &file, || {
            file.write_at(4096, &[2; 4096]).expect("a write");
            file.flush_data().expect("it lands");
            let mut other = [0; 4096];
            file.read_at(4096, &mut other).expect("a read");
            assert_eq!(other, [2; 4096]);
        });
        assert_eq!(content.len(), LEN, "{options}");
        let changed = &content[4096..8192];
        assert!(changed == [1; 4096] || changed == [2; 4096], "{options}");
        assert!(content[..4096] == [1; 4096] && content[8192..] == [1; LEN - 8192], "{options}");
        let content = while_it_reads(&gate, &short, || {
            let cut = SetAttr { size: Some(100), ..SetAttr::default() };
            short.set_attr(&cut).expect("shrinking always works");
        });
        assert!(content.len() == 100 || content.len() == LEN, "{options}: {}", content.len());
        assert_eq!(content[..100], [1; 100], "{options}");
        drop((file, short));
        fs.close().expect("closed");
        check(&below);
    }
}

/// Tests R7.
/// L1: if the transaction that made an extent drops it, another file may get its space immediately.
/// Without checksums, only a comparison of the layout reveals that the extent was dropped.
#[test]
fn reads_return_no_data_of_others() {
    for sums in [false, true] {
        for options in ["page_cache=0", "rw"] {
            // A commit that comes in between to make room keeps the dropped extent allocated, so
            // the test tries again.
            let is_met = (0..20).any(|_| another_takes_its_place(sums, options));
            assert!(is_met, "{options}, sums: {sums}");
        }
    }
}

/// Cuts a file while another thread reads it, and writes a second file. Returns whether the second
/// file got the space of the first.
fn another_takes_its_place(sums: bool, options: &str) -> bool {
    let (below, gate, fs) = gated(128, options);
    let make = |name: &str| {
        let file = file_with(&fs.root(), name, b"");
        let flags = (!sums).then_some(InodeFlags::NODATACOW);
        file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
        file
    };
    let (mine, others) = (make("mine"), make("others"));
    let allocate = FallocateMode::Allocate { keep_size: false };
    let place = file_with(&fs.root(), "place", b"");
    place.fallocate(0, LEN as u64, allocate).expect("there is room");
    let filler = fill(&fs, 0);
    let mut end = filler.attr().size;
    while filler.fallocate(end, 4096, allocate).is_ok() {
        end += 4096;
    }
    drop(place);
    fs.root().unlink(b"place").expect("removed");
    fs.sync().expect("durable");
    mine.write_at(0, &[1; LEN]).expect("there is room");
    mine.flush_data().expect("it lands");
    let mut is_free = false;
    let content = while_it_reads(&gate, &mine, || {
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        mine.set_attr(&cut).expect("shrinking always works");
        // With exactly this much free space, the second file has no other place.
        is_free = fs.space_stats().accounts.data.free() == LEN as u64;
        others.write_at(0, &[2; LEN]).expect("there is room");
        others.flush_data().expect("it lands");
    });
    assert!(content.iter().all(|byte| *byte == 1), "{options}, sums: {sums}: another file's bytes");
    let mut found = vec![0; LEN];
    assert_eq!(others.read_at(0, &mut found).expect("a read"), LEN);
    assert!(found == [2; LEN], "{options}: what was read meanwhile is not kept for others");
    drop((mine, others, filler));
    fs.close().expect("closed");
    check(&below);
    is_free
}

/// Tests R7.
/// `data::reader::read_plan::L2`: a plan decides once, at its beginning, whether the data has
/// checksums. While the first extent is read, the file is cut and loses its checksums. The second
/// extent stays in its place, but the device returns wrong bytes of it. No reader gets them.
#[test]
fn file_loses_its_sums_under_a_reader() {
    for options in ["page_cache=0", "rw"] {
        let (below, gate, fs) = gated(256, options);
        let file = file_with(&fs.root(), "file", &[1; LEN]);
        file.flush_data().expect("it lands");
        let between = file_with(&fs.root(), "between", &[2; LEN]);
        between.flush_data().expect("it lands");
        file.write_at(LEN as u64, &[ROTTEN; LEN]).expect("there is room");
        fs.sync().expect("durable");
        let content = while_it_reads_so_many(&gate, &file, 2 * LEN, || {
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            file.set_attr(&cut).expect("shrinking always works");
            let bare = SetAttr { flags: Some(InodeFlags::NODATACOW), ..SetAttr::default() };
            file.set_attr(&bare).expect("flags");
            assert!(file.attr().flags & InodeFlags::NODATASUM != 0, "it has sums still");
        });
        assert!(content.is_empty(), "{options}: {} bytes of it", content.len());
        drop((file, between));
        fs.close().expect("closed");
        check(&below);
    }
}

/// The address of the first byte of a file.
fn place(fs: &Filesystem, file: &Inode) -> Logical {
    let key = Key::new(file.id().ino.0, Kind::EXTENT_DATA, 0);
    let item = fs.view().get(file.id().tree, &key).expect("it reads").expect("an extent");
    FileExtent::parse(&item).expect("an extent").region().expect("not inline").disk
}

/// Tests R7.
/// L1: data that is moved during a read keeps its place until the read ends, despite discards and
/// writes meanwhile. Without checksums, nothing else protects the read.
#[test]
fn moved_data_is_read_at_its_old_place() {
    for (sums, options) in [(false, "page_cache=0"), (false, "rw"), (true, "page_cache=0")] {
        let (below, gate, fs) = gated(160, &format!("{options},discard"));
        let file = file_with(&fs.root(), "file", b"");
        let flags = (!sums).then_some(InodeFlags::NODATACOW);
        file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
        file.write_at(0, &[1; LEN]).expect("there is room");
        fs.sync().expect("durable");
        let before = place(&fs, &file);
        gate.hook.set(GateState::Closed);
        let content = thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let mut buf = vec![0; LEN];
                assert_eq!(file.read_at(0, &mut buf).expect("a read"), LEN);
                buf
            });
            gate.hook.wait_until_reached();
            // The balance waits for readers after it has moved the data.
            let moves = scope.spawn(|| {
                let all =
                    BalanceOptions { data: Some(Filter::default()), ..BalanceOptions::default() };
                fs.balance(&all, &mut |_| true)
            });
            while place(&fs, &file) == before && !moves.is_finished() {
                thread::yield_now();
            }
            assert_ne!(place(&fs, &file), before, "it was not moved");
            fs.sync().expect("durable");
            // Another file takes all free space.
            let others = file_with(&fs.root(), "others", b"");
            let mut end = 0;
            while others.write_direct(end, &[2; 1 << 20]).is_ok() {
                end += 1 << 20;
            }
            assert!(end > 16 << 20, "{end} bytes");
            gate.hook.set(GateState::Open);
            let _ = moves.join().expect("no panic");
            reads.join().expect("no panic")
        });
        assert!(
            content.iter().all(|byte| *byte == 1),
            "{options}, sums: {sums}: another file's bytes"
        );
        drop(file);
        fs.close().expect("closed");
        check(&below);
    }
}
