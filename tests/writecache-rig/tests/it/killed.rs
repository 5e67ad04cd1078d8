//! Our own process is killed at any moment, again and again. No acknowledged flush is lost.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use buttress_base::Rng;
use buttress_interop::scratch::Scratch;
use buttress_writecache_rig::work::Step;
use buttress_writecache_rig::{Work, has_guest};

use crate::{SECTORS, blank, content, file, guest, linux, make, open, program};

/// The rounds of a test. `BUTTRESS_RIG_ROUNDS` sets another number for all tests.
pub(crate) fn rounds(default: u64) -> u64 {
    let asked = std::env::var("BUTTRESS_RIG_ROUNDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(default)
}

/// Works in a separate process, which is killed after `until` flushes. Returns the number of
/// durable steps.
fn killed(origin: &Path, cache: &Path, list: &str, work: &Work, until: u64) -> usize {
    let mut child = Command::new(program())
        .arg("cached")
        .args([origin, cache])
        .args([list, &work.seed.to_string(), &work.steps.to_string(), &work.align.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut flushed = 0;
    let mut take = |line: String| {
        // With persistent memory, the first line tells how the memory is mapped.
        let Some(count) = line.strip_prefix("flushed ") else { return };
        flushed = count.parse().expect("a number");
    };
    for _ in 0..=until {
        take(lines.next().expect("it goes on").expect("it can be read"));
    }
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    // Lines that the process wrote before it was killed are read, too, except a line that was cut.
    lines.map_while(Result::ok).filter(|line| line.len() > 8).for_each(&mut take);
    flushed
}

#[test]
fn ours_is_killed_again_and_again() {
    // The device is smaller than in other tests, so that blocks are reused more often.
    const SECTORS: usize = 4096;
    let scratch = Scratch::new();
    let mut rng = Rng::new(1);
    let lists = [
        "high_watermark=20,low_watermark=5,pause_writeback=0",
        "autocommit_time=1,max_age=1,pause_writeback=0",
        "consistent_origin=on,high_watermark=10,low_watermark=0",
        "writeback=lru,autocommit_blocks=20",
    ];
    for (index, block_size) in [(0, 512), (1, 1024), (2, 4096)] {
        let origin = blank(scratch.join(&format!("origin-{index}")), SECTORS);
        // The cache has room for a third of the written blocks.
        let cache = blank(scratch.join(&format!("cache-{index}")), SECTORS / 3);
        make(&origin, &cache, block_size);
        let mut model = vec![0; SECTORS];
        for round in 0..rounds(24) / 3 {
            let seed = round + 1;
            let list = lists[round as usize % lists.len()];
            let work = Work { seed, steps: 5000, sectors: SECTORS, align: 1 };
            let flushed = killed(&origin, &cache, list, &work, rng.below(60));
            let cached = open(&origin, &cache, "writeback=sorted");
            let found = content(&cached);
            work.check(&model, &found, flushed, work.steps);
            if round % 3 == 2 {
                cached.drain(|_| {}).expect("files");
                assert_eq!(content(&cached), found);
            }
            cached.close().expect("files");
            model = found;
        }
    }
}

/// Linux is killed and we recover. We are killed and Linux recovers, drains, and removes its
/// device. The test repeats these steps with the cache of the previous round, for each block size,
/// with a large and a small cache.
#[test]
fn either_is_killed_and_the_other_recovers() {
    if !has_guest() {
        return;
    }
    let mut rng = Rng::new(2);
    let lists =
        ["autocommit_time=1,max_age=1,pause_writeback=0", "consistent_origin=on", "mode=pmem"];
    let mut places = Vec::new();
    for (block_size, sectors) in [(4096, 3000), (512, 20_000), (1024, 1500)] {
        let path = |what: &str| guest().path(&format!("either-{what}-{block_size}"));
        let (origin, cache) = (blank(path("origin"), SECTORS), blank(path("cache"), sectors));
        make(&origin, &cache, block_size);
        places.push((block_size, origin, cache, vec![0; SECTORS]));
    }
    for round in 0..rounds(4) {
        let count = places.len() as u64;
        let (block_size, origin, cache, model) = &mut places[(round / 2 % count) as usize];
        let align = *block_size as usize / 512;
        let seed = round + 1;
        if round % 2 == 0 {
            let work = Work { seed, steps: 3000, sectors: SECTORS, align };
            let flushes: Vec<_> =
                (1..).zip(work.list()).filter(|(_, step)| *step == Step::Flush).collect();
            let (last, _) = flushes[rng.below(150) as usize];
            let create = linux::create(*block_size, "");
            let script = format!("{create}\n{}", linux::do_work(&work));
            let said = guest().run(&script, origin, cache, Some(&format!("flushed {last}")));
            let cached = open(origin, cache, "");
            let found = content(&cached);
            work.check(model, &found, said.flushed(), work.steps);
            cached.close().expect("files");
            *model = found;
        } else {
            let work = Work { seed, steps: 5000, sectors: SECTORS, align: 1 };
            let list = lists[round as usize / 2 % lists.len()];
            let flushed = killed(origin, cache, list, &work, rng.below(60));
            let create = linux::create(*block_size, "");
            let script = format!("{create}\ndmsetup message wc 0 flush\ndmsetup remove wc");
            guest().run(&script, origin, cache, None);
            let found = content(&*file(origin));
            work.check(model, &found, flushed, work.steps);
            *model = found;
        }
    }
}
