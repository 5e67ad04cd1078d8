//! Many writers and readers run beside commits and sweeps.

use std::io::IoSlice;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Class, Device};
use buttress_cache::CacheOptions;

use crate::regressions::Hooked;
use crate::rig::{SECTOR, blank, by_hand, open, read, sector, write};

/// Each thread has sectors of its own, side by side within the same blocks, and always reads back
/// its last write. In the end the origin has all written data. There is little room, so that slots
/// go to other blocks while threads read.
#[test]
fn writers_and_readers_among_sweeps() {
    const THREADS: usize = 4;
    const SECTORS: usize = 2048;
    let lists = [
        "high_watermark=40,low_watermark=10,autocommit_blocks=7,pause_writeback=0",
        "mode=pmem,autocommit_time=2",
        "consistent_origin=on,high_watermark=20,low_watermark=5",
        "writeback=lru,high_watermark=10,low_watermark=0,pause_writeback=0",
        "max_age=3,autocommit_time=1,pause_writeback=0",
    ];
    for (round, list) in lists.iter().enumerate() {
        let (origin, cache) = blank(4096, 64, SECTORS as u64);
        let origin = Arc::new(origin);
        let options = CacheOptions::parse(list).expect("right");
        let cached = open(Arc::clone(&origin) as _, Arc::new(cache), &options);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let cached = &cached;
                scope.spawn(move || {
                    let mut rng = Rng::new((round * 10 + thread) as u64);
                    let mut mine = vec![0; SECTORS / THREADS];
                    for step in 1..400 {
                        let index = rng.below(mine.len() as u64) as usize;
                        let at = index * THREADS + thread;
                        if rng.chance(2, 3) {
                            write(cached, at, &[step]).expect("memory");
                            mine[index] = step;
                        } else {
                            let mut bytes = [0; SECTOR];
                            cached.read_at((at * SECTOR) as u64, &mut bytes).expect("memory");
                            assert!(bytes == sector(mine[index]), "{list}: sector {at}");
                        }
                        if rng.chance(1, 30) {
                            cached.flush().expect("memory");
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..5 {
                    cached.drain(|_| {}).expect("memory");
                }
            });
        });
        let found = read(&cached);
        cached.drain(|_| {}).expect("memory");
        assert_eq!(read(&*origin), found, "{list}");
        cached.close().expect("memory");
    }
}

/// X4: one part of a block bypasses the cache while another part enters the cache together with the
/// origin's content. Afterwards the cache and the origin hold both parts.
#[test]
fn one_part_goes_around_while_another_comes_in() {
    let (origin, cache) = blank(4096, 100, 1600);
    let origin = Arc::new(origin);
    let hooked = Hooked::new(Arc::clone(&origin) as _);
    let options = by_hand("metadata_only,high_watermark=100,low_watermark=90");
    let cached = Arc::new(open(Arc::clone(&hooked) as _, Arc::new(cache), &options));
    let (sender, wrote) = mpsc::channel();
    let inside = Arc::clone(&cached);
    hooked.set(move |_, _| {
        let (cached, sender) = (Arc::clone(&inside), sender.clone());
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let bytes = sector(7);
            let bufs = [IoSlice::new(&bytes)];
            let written = cached.write_classed_at(401 * SECTOR as u64, &bufs, Class::Metadata);
            // If this thread had to wait, the receiver may have been dropped.
            done.send(()).ok();
            sender.send(written).expect("the receiver waits");
        });
        // This time is enough for a thread that does not have to wait.
        is_done.recv_timeout(Duration::from_millis(200)).ok();
    });
    write(&*cached, 400, &[5]).expect("memory");
    hooked.clear();
    wrote.recv_timeout(Duration::from_secs(10)).expect("it ends").expect("memory");
    assert_eq!(cached.cached_blocks(), 1, "the second part came in");
    assert_eq!(read(&*cached)[400..402], [5, 7]);
    cached.drain(|_| {}).expect("memory");
    assert_eq!(read(&*origin)[400..402], [5, 7]);
}
