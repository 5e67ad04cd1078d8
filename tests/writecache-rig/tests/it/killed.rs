//! Our own process, killed at any moment, again and again: no acknowledged flush is lost.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use buttress_base::Rng;
use buttress_interop::scratch::Scratch;
use buttress_writecache_rig::Work;

use crate::{blank, content, make, open, program};

/// Rounds by default; `BUTTRESS_RIG_ROUNDS` names another number.
const ROUNDS: u64 = 24;

#[test]
fn ours_is_killed_again_and_again() {
    const SECTORS: usize = 4096;
    let rounds = std::env::var("BUTTRESS_RIG_ROUNDS").ok().and_then(|text| text.parse().ok());
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
        // A third of what is written fits.
        let cache = blank(scratch.join(&format!("cache-{index}")), SECTORS / 3);
        make(&origin, &cache, block_size);
        let mut model = vec![0; SECTORS];
        for round in 0..rounds.unwrap_or(ROUNDS) / 3 {
            let seed = round + 1;
            let list = lists[round as usize % lists.len()];
            let work = Work { seed, steps: 5000, sectors: SECTORS, align: 1 };
            let mut child = Command::new(program())
                .arg("cached")
                .args([&origin, &cache])
                .args([list, &seed.to_string(), "5000", "1"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            let until = rng.below(60);
            let mut flushed = 0;
            let mut take = |line: String| {
                let count = line.strip_prefix("flushed ").expect("it says nothing else");
                flushed = count.parse().expect("a number");
            };
            for _ in 0..=until {
                take(lines.next().expect("it goes on").expect("it can be read"));
            }
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
            // What it said before it died counts; a line that was cut does not.
            lines.map_while(Result::ok).filter(|line| line.len() > 8).for_each(&mut take);
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
