//! The jobs of a search: tests that take other seeds in each round, targets of a fuzzer, and their
//! shares of the time.

/// The program that a job runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Tests of a package's program `it`, chosen by words.
    Tests { package: &'static str, filters: &'static [&'static str] },
    /// A target of the folder `fuzz`. If its input is a list of choices, `choices` is the most
    /// bytes that it uses.
    Fuzz { choices: Option<u32> },
}

/// One test, several tests of one program, or a target of a fuzzer.
#[derive(Debug)]
pub(crate) struct Job {
    /// The name in the table. For a fuzzer's target, its name.
    pub(crate) name: &'static str,
    pub(crate) what: What,
    /// Parts of the time.
    pub(crate) share: u32,
    /// Whether the job needs `/dev/fuse` or loop devices, and the right to mount.
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

/// A target of the fuzzer with inputs from seeds, for a given duration.
const fn hostile(name: &'static str, filters: &'static [&'static str]) -> Job {
    job(name, "buttress-hostile", filters, 1)
}

const fn fuzz(name: &'static str) -> Job {
    Job { name, what: What::Fuzz { choices: None }, share: 2, mounts: false }
}

const fn fuzz_choices(name: &'static str, bytes: u32) -> Job {
    Job { what: What::Fuzz { choices: Some(bytes) }, ..fuzz(name) }
}

/// All jobs.
pub(crate) const SUITE: &[Job] = &[
    job("power cuts in commits", "buttress-txn", &["crash::"], 4),
    job("power cuts after fsync", "buttress-fs", &["synced_files_survive_power_cuts"], 6),
    job("power cuts among snapshots", "buttress-fs", &["power_is_cut_while_subvolumes"], 2),
    job("power cuts in a balance", "buttress-fs", &["power_is_cut_in_a_balance"], 2),
    job("power cuts beside moves", "buttress-fs", &["power_is_cut_while_groups_move"], 1),
    job("power cuts where it is full", "buttress-fs", &["a_full_volume_keeps"], 4),
    job("full volumes", "buttress-txn", &["full::storms::"], 4),
    job("power cuts beside parity", "buttress-fs", &["power_is_cut_beside_raid"], 2),
    job("power cuts over a store", "buttress-fs", &["stores::synced_files"], 2),
    job("power cuts over a store with a log", "buttress-fs", &["stores::logged::"], 2),
    job("writers of one store", "buttress-fs", &["stores::writers::"], 2),
    job("orders of threads", "buttress-fs", &["seeded::"], 4),
    Job { mounts: true, ..job("power cuts under sqlite", "buttress-interop", &["sqlite::"], 4) },
    Job { mounts: true, ..job("power cuts before Linux", "buttress-interop", &["states::"], 2) },
    job("power cuts of a cache", "buttress-cache", &["crash::", "cut::"], 3),
    job("failing devices", "buttress-fs", &["faults::the_nth"], 4),
    job("failing devices in logs", "buttress-fs", &["faults_in_logs_lose_nothing"], 1),
    job("failing devices of a cache", "buttress-cache", &["faults::"], 1),
    Job { mounts: true, ..job("killed mounts", "buttress-interop", &["killed::"], 4) },
    hostile("hostile superblocks", &["parsers::superblocks"]),
    hostile("hostile chunk maps", &["parsers::chunk_maps"]),
    hostile("hostile nodes", &["parsers::nodes"]),
    hostile("hostile items", &["parsers::items"]),
    hostile("hostile small volumes", &["volumes::small_volumes"]),
    hostile("hostile volumes of ours", &["volumes::our_volumes"]),
    hostile("hostile volumes of Linux", &["volumes::linux_volumes"]),
    hostile("hostile volumes for the checker", &["volumes::the_checker_answers"]),
    hostile("hostile logs", &["parsers::logs"]),
    hostile("hostile streams", &["parsers::streams_of_subvolumes"]),
    hostile("hostile requests of FUSE", &["parsers::requests_of_fuse"]),
    hostile("hostile clients of NBD", &["parsers::nbd_clients"]),
    hostile("hostile caches", &["parsers::caches"]),
    hostile("hostile volumes in stores", &["parsers::volumes_in_stores"]),
    hostile("hostile trees of files", &["parsers::trees_of_files"]),
    fuzz("superblock"),
    fuzz("chunk_map"),
    fuzz("node"),
    fuzz("item"),
    fuzz_choices("image", 96),
    fuzz_choices("checker", 96),
    fuzz_choices("log", 96),
    fuzz_choices("stream", 200),
    fuzz_choices("fuse", 1400),
    fuzz("cache"),
    fuzz("nbd"),
    fuzz_choices("store", 96),
    fuzz_choices("rootdir", 1200),
];
