//! What a search is made of: tests that take other seeds in each round, and their shares of the time.

/// One test, or several of one program.
#[derive(Debug)]
pub(crate) struct Job {
    /// What the table calls it.
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// Words that choose the tests.
    pub(crate) filters: &'static [&'static str],
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
    Job { name, package, filters, share, mounts: false }
}

/// All of them.
pub(crate) const SUITE: &[Job] = &[
    job("power cuts in commits", "buttress-txn", &["crash::"], 4),
    job("power cuts after fsync", "buttress-fs", &["what_was_synced_survives"], 6),
    job("power cuts among snapshots", "buttress-fs", &["power_is_cut_while_subvolumes"], 2),
    job("power cuts in a balance", "buttress-fs", &["power_is_cut_in_a_balance"], 2),
    job("orders of threads", "buttress-fs", &["seeded::"], 4),
    job("power cuts of a cache", "buttress-cache", &["crash::", "cut::", "known::"], 3),
    job("failing devices", "buttress-fs", &["faults::"], 4),
    job("failing devices of a cache", "buttress-cache", &["faults::"], 1),
    Job { mounts: true, ..job("killed mounts", "buttress-interop", &["killed::"], 4) },
    job("volumes made to do harm", "buttress-hostile", &["volumes::"], 3),
    job("messages made to do harm", "buttress-hostile", &["parsers::"], 3),
];
