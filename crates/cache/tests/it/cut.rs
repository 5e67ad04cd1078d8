//! `consistent_origin`: whenever the cache says that the origin is whole, the origin alone is the
//! state of one commit. If the cache device is then lost, only later writes are lost.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_cache::inspect;
use buttress_cache::layout::Cut;
use buttress_sim::campaign;

use crate::crash::Run;
use crate::rig::{place, read, write};

/// Crashes on both devices at every request. If the superblock says `Whole`, the origin without its
/// cache is one of the flushed states. Otherwise origin and cache together are one of these states.
#[test]
fn the_origin_is_a_commit_whenever_it_is_said_to_be() {
    let (mut whole, mut towards, mut stale) = (0, 0, 0);
    for seed in campaign::seeds(0..8) {
        let mut rng = Rng::new(seed);
        let blocks = if seed % 2 == 0 { 200 } else { 12 };
        let mut run =
            Run::new(1024, blocks, "consistent_origin=on,high_watermark=0,low_watermark=0");
        let cached = run.open();
        cached.drain(|_| {}).expect("memory");
        run.start();
        for step in 1..50 {
            if rng.chance(2, 3) {
                let range = place(&mut rng, 160, 8);
                let mut state = run.last();
                state[range.clone()].fill(step);
                let values = state[range.clone()].to_vec();
                run.began(state);
                write(&cached, range.start, &values).expect("memory");
            } else if rng.chance(1, 2) {
                cached.flush().expect("memory");
                run.flushed();
            } else {
                cached.drain_to_low().expect("memory");
            }
        }
        std::mem::forget(cached);
        run.log.crashes(&mut rng.clone(), 3, 1, |crash| {
            let cache = Arc::new(crash.devices[1].fork()) as Arc<dyn Device>;
            let scan = inspect::scan(cache, None, 0).expect("a cache");
            let stamp = scan.superblock.stamp.expect("it is stamped");
            let alone = read(&crash.devices[0]);
            match stamp.cut {
                // Sweeps make room during a write, so with a full cache a commit can have a part of
                // the last write. The sectors of that write are old or new.
                Cut::Whole(_) if blocks > 100 => {
                    whole += 1;
                    let is_commit = run.states.contains(&alone);
                    assert!(
                        is_commit,
                        "seed {seed}: the origin alone, {:?}",
                        (crash.event, crash.draw)
                    );
                    stale += usize::from(!run.allowed(crash).contains(&alone));
                }
                Cut::Whole(_) => {
                    whole += 1;
                    let is_near = run.states.windows(2).any(|pair| {
                        let mut sectors = alone.iter().zip(pair[0].iter().zip(&pair[1]));
                        sectors.all(|(found, (old, new))| found == old || found == new)
                    });
                    let about = (crash.event, crash.draw);
                    assert!(is_near, "seed {seed}: the origin alone, {about:?}");
                }
                Cut::Towards(_) => towards += 1,
                Cut::None => panic!("every open has the option"),
            }
            let recovered = run.recover(crash);
            run.check_sectors(crash, &read(&recovered));
            if crash.event % 4 == 0 {
                recovered.drain(|_| {}).expect("memory");
                assert!(matches!(recovered.status().cut, Cut::Whole(_)));
            }
            std::mem::forget(recovered);
        });
    }
    campaign::count("states", whole + towards);
    assert!(whole > 500 && towards > 500 && stale > 50, "{whole} {towards} {stale}");
}

/// An opening without `consistent_origin` removes `Whole` from the superblock before anything else
/// is written.
#[test]
fn the_claim_ends_with_the_option() {
    let mut run = Run::new(1024, 50, "consistent_origin=on");
    let cached = run.open();
    write(&cached, 0, &[1; 8]).expect("memory");
    cached.drain(|_| {}).expect("memory");
    assert!(matches!(cached.status().cut, Cut::Whole(_)));
    cached.close().expect("memory");
    run.options.consistent_origin = false;
    let cached = run.open();
    assert_eq!(cached.status().cut, Cut::None);
}
