//! The order in which Linux's dm-writecache writes to its origin, compared with ours on one
//! simulated disk.

use buttress_bench::writeback::{self, Writeback};
use buttress_writecache_rig::has_guest;

use crate::{blank, guest};

/// MiB of the cache. `BUTTRESS_RIG_ORDER_MIB` sets another number.
const MIB: u64 = 8;

/// Random writes of twice the cache, then a flush of everything, through Linux's module and through
/// our cache. The writes of each cache to the origin are played on the same simulated disk. With
/// sorting, our cache is twice as fast while writes continue. The flush of everything is no slower
/// than Linux's, which is sorted, too. `BUTTRESS_RIG_TRACE` keeps the log.
#[test]
fn linux_and_we_on_one_disk() {
    if !has_guest() {
        return;
    }
    let asked = std::env::var("BUTTRESS_RIG_ORDER_MIB").ok().and_then(|text| text.parse().ok());
    let mib = asked.unwrap_or(MIB);
    let sectors = |mib: u64| (mib << 11) as usize;
    let origin = blank(guest().path("order-origin"), sectors(2 * mib));
    let cache = blank(guest().path("order-cache"), sectors(mib));
    // The log has all data that reaches the origin, and a sector for each request.
    let log = blank(guest().path("dm-writecache.log"), sectors(6 * mib));
    let count = 2 * (mib << 8);
    let script = format!(
        "dmsetup create log --noudevsync --noudevrules --table \
         '0 {all} log-writes /dev/ubda /dev/ubdd'\n\
         dmsetup create wc --noudevsync --noudevrules --table \
         '0 {all} writecache s /dev/dm-0 /dev/ubdb 4096 0'\n\
         dmsetup message log 0 mark steady\nrig-work random /dev/dm-1 2019 {count}\n\
         dmsetup message log 0 mark flush\ndmsetup message wc 0 flush\n\
         dmsetup remove wc\ndmsetup remove log",
        all = sectors(2 * mib),
    );
    guest().run_logged(&script, &origin, &cache, Some(&log), None);
    if let Some(place) = std::env::var_os("BUTTRESS_RIG_TRACE") {
        std::fs::copy(&log, place).expect("a place for the log");
    }
    let plot = guest().path("order.svg");
    let experiment =
        Writeback { cache_mib: mib, files: None, traces: vec![log], plot: Some(plot.clone()) };
    let figures = experiment.run(&mut |_| {}).expect("it is played");
    let table = writeback::table(&figures);
    eprintln!("{table}");
    assert!(std::fs::metadata(plot).expect("a plot").len() > 1000);
    let row = |disk: &str, name: &str| {
        let mut rows = figures["policies"].as_array().into_iter().flatten();
        let found = rows.find(|row| row["disk"] == disk && row["writeback"] == name);
        found.unwrap_or_else(|| panic!("no {disk} {name} in {figures}")).clone()
    };
    let (ours, theirs) = (row("simulated", "sorted"), row("trace", "dm-writecache"));
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64().expect("a number");
    let rate = "drain_blocks_per_second";
    assert!(number(&ours, rate) >= 2.0 * number(&theirs, rate), "{table}");
}
