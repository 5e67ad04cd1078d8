//! What a search is made of: tests that take other seeds in each round, targets of a fuzzer, and their shares of the
//! time.

/// What a job runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Tests of a package's program `it`, chosen by words.
    Tests { package: &'static str, filters: &'static [&'static str] },
    /// A target of the folder `fuzz`.
    Fuzz,
}

/// One test, several of one program, or a target of a fuzzer.
#[derive(Debug)]
pub(crate) struct Job {
    /// What the table calls it; the name of a fuzzer's target.
    pub(crate) name: &'static str,
    pub(crate) what: What,
    /// Parts of the time.
    pub(crate) share: u32,
    /// Whether it must have `/dev/fuse` and the right to mount.
    pub(crate) mounts: bool,
}

const fn job(
    name: &'static str,
    package: &'static str,
    filters: &'static [&'static str],
    share: u32,
) -> Job {
    Job { name, what: What::Tests { package, filters }, share, mounts: false }
}

const fn fuzz(name: &'static str) -> Job {
    Job { name, what: What::Fuzz, share: 2, mounts: false }
}

/// All of them.
pub(crate) const SUITE: &[Job] = &[
    job("power cuts in commits", "buttress-txn", &["crash::"], 4),
    job("power cuts after fsync", "buttress-fs", &["what_was_synced_survives"], 6),
    job("power cuts among snapshots", "buttress-fs", &["power_is_cut_while_subvolumes"], 2),
    job("power cuts in a balance", "buttress-fs", &["power_is_cut_in_a_balance"], 2),
    job("power cuts beside moves", "buttress-fs", &["power_is_cut_while_groups_move"], 1),
    job("power cuts beside parity", "buttress-fs", &["power_is_cut_beside_raid"], 2),
    job("orders of threads", "buttress-fs", &["seeded::"], 4),
    job("power cuts of a cache", "buttress-cache", &["crash::", "cut::"], 3),
    job("failing devices", "buttress-fs", &["faults::the_nth"], 4),
    job("failing devices in logs", "buttress-fs", &["faults_in_logs_lose_nothing"], 1),
    job("failing devices of a cache", "buttress-cache", &["faults::"], 1),
    Job { mounts: true, ..job("killed mounts", "buttress-interop", &["killed::"], 4) },
    job("volumes made to do harm", "buttress-hostile", &["volumes::"], 3),
    job("messages made to do harm", "buttress-hostile", &["parsers::"], 3),
    fuzz("superblock"),
    fuzz("chunk_map"),
    fuzz("node"),
    fuzz("item"),
    fuzz("image"),
    fuzz("log"),
    fuzz("stream"),
    fuzz("fuse"),
    fuzz("cache"),
    fuzz("nbd"),
];
