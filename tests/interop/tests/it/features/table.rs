//! The table. A row makes two tests: `NAME::made_by_linux` and `NAME::made_here`.

use buttress_format::{CsumType, Profile};
use buttress_fs::MakeOptions;
use buttress_fs::make::Features;
use buttress_interop::sample::Scale;

use super::{Feature, acts};

/// Size in MiB of devices on which Linux can balance three and four copies. On devices of 2 GiB,
/// Linux finds no space for such a balance, even on its own volumes.
const ROOMY: u64 = 6 << 10;

macro_rules! features {
    ($($(#[$about:meta])+ $name:ident: $feature:expr;)+) => {
        $(
            $(#[$about])+
            mod $name {
                use super::*;

                #[test]
                fn made_by_linux() {
                    $feature.made_by_linux();
                }

                #[test]
                fn made_here() {
                    $feature.made_here();
                }
            }
        )+

        /// The names of all rows.
        const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}

/// Sets the features of a volume that is made here.
fn switched(options: &mut MakeOptions, list: &str) {
    options.features = Features::parse(list).expect("known features");
}

/// Gives data and metadata the same profile.
fn spread(options: &mut MakeOptions, profile: Profile) {
    options.metadata = Some(profile);
    options.data = Some(profile);
}

features! {
    /// The defaults of each side. Our defaults include the block-group tree.
    defaults: Feature::default();

    /// Nodes of 4 KiB: deep trees, and few items a leaf.
    nodes_of_4k: Feature {
        mkfs: &["-n", "4k"],
        make: |options| options.nodesize = 4096,
        ..Feature::default()
    };
    /// Nodes of 8 KiB.
    nodes_of_8k: Feature {
        mkfs: &["-n", "8k"],
        make: |options| options.nodesize = 8192,
        ..Feature::default()
    };
    /// Nodes of 32 KiB.
    nodes_of_32k: Feature {
        mkfs: &["-n", "32k"],
        make: |options| options.nodesize = 32 << 10,
        ..Feature::default()
    };
    /// Nodes of 64 KiB.
    nodes_of_64k: Feature {
        mkfs: &["-n", "64k"],
        make: |options| options.nodesize = 64 << 10,
        ..Feature::default()
    };

    /// The checksum xxhash64.
    checksum_xxhash: Feature {
        mkfs: &["--csum", "xxhash"],
        make: |options| options.csum = CsumType::Xxhash64,
        ..Feature::default()
    };
    /// The checksum SHA-256.
    checksum_sha256: Feature {
        mkfs: &["--csum", "sha256"],
        make: |options| options.csum = CsumType::Sha256,
        ..Feature::default()
    };
    /// The checksum BLAKE2b.
    checksum_blake2: Feature {
        mkfs: &["--csum", "blake2"],
        make: |options| options.csum = CsumType::Blake2b,
        ..Feature::default()
    };
    /// Files without checksums that are copied on write.
    nodatasum: Feature { linux: "nodatasum", ours: "nodatasum", ..Feature::default() };

    /// One copy of everything.
    single: Feature {
        mkfs: &["-m", "single", "-d", "single"],
        make: |options| spread(options, Profile::Single),
        ..Feature::default()
    };
    /// Two copies of everything on one device.
    dup: Feature {
        mkfs: &["-m", "dup", "-d", "dup"],
        make: |options| spread(options, Profile::Dup),
        ..Feature::default()
    };
    /// One copy of everything, over two devices.
    single_on_two: Feature {
        devices: 2,
        mkfs: &["-m", "single", "-d", "single"],
        make: |options| spread(options, Profile::Single),
        ..Feature::default()
    };
    /// The default on several devices.
    raid1_of_single: Feature { devices: 2, ..Feature::default() };
    /// Stripes over three devices.
    raid0: Feature {
        devices: 3,
        mkfs: &["-m", "raid0", "-d", "raid0"],
        make: |options| spread(options, Profile::Raid0),
        ..Feature::default()
    };
    /// Two copies on two of three devices.
    raid1: Feature {
        devices: 3,
        mkfs: &["-m", "raid1", "-d", "raid1"],
        make: |options| spread(options, Profile::Raid1),
        ..Feature::default()
    };
    /// Three copies over three devices.
    raid1c3: Feature {
        devices: 3,
        mib: ROOMY,
        mkfs: &["-m", "raid1c3", "-d", "raid1c3"],
        make: |options| spread(options, Profile::Raid1c3),
        ..Feature::default()
    };
    /// Four copies over four devices.
    raid1c4: Feature {
        devices: 4,
        mib: ROOMY,
        mkfs: &["-m", "raid1c4", "-d", "raid1c4"],
        make: |options| spread(options, Profile::Raid1c4),
        ..Feature::default()
    };
    /// Stripes of two copies over four devices.
    raid10: Feature {
        devices: 4,
        mkfs: &["-m", "raid10", "-d", "raid10"],
        make: |options| spread(options, Profile::Raid10),
        ..Feature::default()
    };
    /// Data and metadata in the same block groups.
    mixed_groups: Feature {
        mkfs: &["--mixed", "-n", "4k"],
        make: |options| {
            options.mixed = true;
            options.nodesize = 4096;
        },
        ..Feature::default()
    };
    /// Data and metadata in the same block groups, with two copies on two devices.
    mixed_groups_in_two_copies: Feature {
        devices: 2,
        mkfs: &["--mixed", "-n", "4k", "-m", "raid1", "-d", "raid1"],
        make: |options| {
            options.mixed = true;
            options.nodesize = 4096;
            options.metadata = Some(Profile::Raid1);
        },
        ..Feature::default()
    };

    /// Block groups in the extent tree, as on volumes without a block-group tree.
    no_block_group_tree: Feature {
        make: |options| switched(options, "^block-group-tree"),
        ..Feature::default()
    };
    /// Holes are items.
    explicit_holes: Feature {
        mkfs: &["-O", "^no-holes"],
        make: |options| switched(options, "^block-group-tree,^no-holes"),
        ..Feature::default()
    };
    /// Records of tree nodes in their old, larger form.
    no_skinny_metadata: Feature {
        mkfs: &["-O", "^skinny-metadata"],
        make: |options| switched(options, "^skinny-metadata"),
        ..Feature::default()
    };
    /// All names of an inode in one directory fit one item, or are refused.
    no_extended_refs: Feature {
        mkfs: &["-O", "^extref"],
        make: |options| switched(options, "^extref"),
        scale: Scale { links: 150, ..Feature::default().scale },
        ..Feature::default()
    };
    /// Free space in files: the old space cache.
    space_cache_v1: Feature {
        mkfs: &["-R", "^free-space-tree"],
        make: |options| switched(options, "^block-group-tree,^free-space-tree"),
        linux: "space_cache=v1",
        ..Feature::default()
    };
    /// Free space is not recorded anywhere.
    no_space_cache: Feature {
        mkfs: &["-R", "^free-space-tree"],
        make: |options| switched(options, "^block-group-tree,^free-space-tree"),
        linux: "nospace_cache",
        ..Feature::default()
    };
    /// A volume as btrfs-progs of 2012 made them.
    all_switches_off: Feature {
        mkfs: &["-O", "^no-holes,^skinny-metadata,^extref", "-R", "^free-space-tree", "-n", "4k"],
        make: |options| {
            let all = "^block-group-tree,^free-space-tree,^no-holes,^skinny-metadata,^extref";
            switched(options, all);
            options.nodesize = 4096;
        },
        linux: "nospace_cache",
        scale: Scale { links: 40, collisions: 10, ..Feature::default().scale },
        ..Feature::default()
    };

    /// Compressed with zlib here, with zstd there.
    compressed_zlib: Feature {
        linux: "compress-force=zstd",
        ours: "compress-force=zlib",
        ..Feature::default()
    };
    /// Compressed with LZO here, with zlib there.
    compressed_lzo: Feature {
        linux: "compress-force=zlib:9",
        ours: "compress-force=lzo",
        ..Feature::default()
    };
    /// Compressed here with zstd if that seems worthwhile, and there with LZO.
    compressed_zstd: Feature {
        linux: "compress=lzo",
        ours: "compress=zstd:1",
        ..Feature::default()
    };
    /// All three codecs in one folder by its property, with files that are cut up and shared.
    compressed_by_property: Feature {
        there: acts::compress_there,
        here: acts::compress_here,
        ..Feature::default()
    };

    /// Extents that files share, by clones and by deduplication.
    reflinks: Feature {
        there: acts::reflink_there,
        here: acts::reflink_here,
        ..Feature::default()
    };
    /// Space of shared files is preallocated, zeroed and freed.
    fallocate_of_shared: Feature {
        there: acts::allocate_shared_there,
        here: acts::allocate_shared_here,
        ..Feature::default()
    };
    /// Files that are overwritten in place.
    nodatacow: Feature {
        there: acts::in_place_there,
        here: acts::in_place_here,
        ..Feature::default()
    };
    /// Flags as `chattr` sets them.
    flags: Feature { there: acts::flags_there, here: acts::flags_here, ..Feature::default() };
    /// Extents joined to longer ones.
    defragmented: Feature {
        there: acts::defragment_there,
        here: acts::defragment_here,
        ..Feature::default()
    };

    /// Subvolumes within subvolumes.
    subvolumes: Feature { there: acts::nest_there, here: acts::nest_here, ..Feature::default() };
    /// Writable and read-only snapshots, and snapshots of snapshots. Some snapshots are deleted
    /// again.
    snapshots: Feature {
        mib: 1024,
        there: acts::snapshot_there,
        here: acts::snapshot_here,
        ..Feature::default()
    };
    /// A subvolume that is shown in place of the top.
    default_subvolume: Feature {
        there: acts::default_there,
        here: acts::default_here,
        ..Feature::default()
    };
    /// Quota groups are on.
    quotas: Feature { there: acts::quotas_there, here: acts::quotas_here, ..Feature::default() };

    /// Every chunk was moved once.
    balanced: Feature {
        there: acts::balance_there,
        here: acts::balance_here,
        ..Feature::default()
    };
    /// Chunks got another profile.
    converted: Feature {
        mib: 1024,
        there: acts::convert_there,
        here: acts::convert_here,
        ..Feature::default()
    };
    /// The device was made smaller, then larger.
    resized: Feature {
        mib: 1024,
        there: acts::resize_there,
        here: acts::resize_here,
        ..Feature::default()
    };
}

/// A feature with tests of its own in both directions.
struct Elsewhere {
    name: &'static str,
    /// Tests in which Linux made the volume, and the volume is read or changed here.
    made_by_linux: &'static [fn()],
    /// Tests in which the volume is made here, and Linux reads or changes it.
    made_here: &'static [fn()],
}

const ELSEWHERE: &[Elsewhere] = &[
    Elsewhere {
        name: "streams",
        made_by_linux: &[crate::streams::we_receive_streams],
        made_here: &[
            crate::streams::linux_receives_our_streams,
            crate::streams::clone_sources_save_data,
        ],
    },
    Elsewhere {
        name: "logs",
        made_by_linux: &[crate::logs::logs_of_linux, crate::logs::more_logs_of_linux],
        made_here: &[crate::logs::logs_of_ours],
    },
    Elsewhere {
        name: "simple quotas",
        made_by_linux: &[crate::quotas::simple_quotas_are_kept],
        made_here: &[crate::quotas::simple_quotas_are_kept],
    },
    Elsewhere {
        name: "quota words",
        made_by_linux: &[crate::quota_words::simple_quotas_are_made_by_both],
        made_here: &[
            crate::quota_words::full_quotas_are_counted_as_linux_counts_them,
            crate::quota_words::simple_quotas_are_made_by_both,
        ],
    },
    Elsewhere {
        name: "partitions",
        made_by_linux: &[crate::inside::a_partition_made_by_linux_is_written_here],
        made_here: &[crate::inside::a_partition_made_here_is_mounted_by_linux],
    },
    Elsewhere {
        name: "devices added and removed",
        made_by_linux: &[crate::moving::profiles_are_converted],
        made_here: &[crate::moving::profiles_are_converted],
    },
    Elsewhere {
        name: "large sectors",
        made_by_linux: &[
            crate::sectors::sectors_of_16k_made_by_linux_are_written_here,
            crate::sectors::sectors_of_64k_made_by_linux_are_written_here,
        ],
        made_here: &[crate::sectors::sectors_of_every_size_are_made_here],
    },
    Elsewhere {
        name: "seeds",
        made_by_linux: &[crate::seeds::a_volume_that_linux_grew_is_written_here],
        made_here: &[
            crate::seeds::a_volume_grown_here_is_written_by_linux,
            crate::seeds::a_volume_grows_from_one_that_grew,
        ],
    },
    Elsewhere {
        name: "devices replaced",
        made_by_linux: &[crate::moving::a_device_is_replaced],
        made_here: &[crate::moving::a_device_is_replaced],
    },
    Elsewhere {
        name: "degraded volumes and scrub",
        made_by_linux: &[
            crate::devices::raid1_without_a_device,
            crate::devices::raid10_without_a_device,
            crate::devices::a_scrub_heals_a_mirror,
        ],
        made_here: &[crate::devices::raid1_of_three_without_a_device],
    },
    Elsewhere {
        name: "paused balance",
        made_by_linux: &[crate::moving::a_balance_that_linux_paused],
        made_here: &[crate::moving::a_paused_balance_goes_on],
    },
    Elsewhere {
        name: "interrupted balance",
        made_by_linux: &[crate::upkeep::a_balance_that_a_crash_interrupted],
        made_here: &[crate::moving::a_paused_balance_goes_on],
    },
    Elsewhere {
        name: "replacement cut off",
        made_by_linux: &[crate::replacing::linux_began_to_replace_a_device],
        made_here: &[crate::replacing::linux_ends_a_replacement_begun_here],
    },
    Elsewhere {
        name: "devices under a mount",
        made_by_linux: &[crate::moving::a_balance_that_linux_paused],
        made_here: &[crate::upkeep::devices_change_under_a_mount],
    },
    Elsewhere {
        name: "moved subvolumes",
        made_by_linux: &[crate::sharing::subvolumes_are_moved],
        made_here: &[crate::sharing::subvolumes_are_moved],
    },
    Elsewhere {
        name: "dropping begun by the other",
        made_by_linux: &[crate::crash::a_drop_that_linux_began],
        made_here: &[crate::sharing::snapshots_made_here_are_changed_by_linux],
    },
    Elsewhere {
        name: "free-space tree rebuilt",
        made_by_linux: &[crate::space::free_space_is_recorded_anew],
        made_here: &[crate::space::free_space_is_recorded_anew],
    },
    Elsewhere {
        name: "parity",
        made_by_linux: &[
            crate::devices::raid5_with_losses,
            crate::devices::raid6_with_losses,
            crate::parity::raid5_of_linux,
            crate::parity::raid6_of_linux,
            crate::parity::raid5_nodes_of_linux,
            crate::parity::raid6_nodes_of_linux,
        ],
        made_here: &[
            crate::devices::raid5_is_left,
            crate::devices::raid6_is_left,
            crate::parity::made_here,
            crate::parity::raid5_nodes_made_here,
            crate::parity::raid6_nodes_made_here,
            crate::parity::converted,
        ],
    },
];

/// The page on the format names a row of this table for each feature that is written.
#[test]
fn every_documented_feature_has_a_row() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page.join("../../docs/format/compatibility.md"));
    let page = page.expect("the page on the format");
    let known: Vec<&str> = NAMES.iter().copied().chain(ELSEWHERE.iter().map(|e| e.name)).collect();
    for row in ELSEWHERE {
        assert!(!row.made_by_linux.is_empty() && !row.made_here.is_empty(), "{}", row.name);
    }
    let rows: Vec<Vec<&str>> = page
        .lines()
        .skip_while(|line| !line.starts_with("| | read | written | seen by |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 15, "the table is not where it was");
    let mut seen = Vec::new();
    for row in rows {
        let [feature, _, written, by] = row[..] else { panic!("four cells, not {row:?}") };
        let names: Vec<&str> = by.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
        assert!(
            !names.is_empty() || written.starts_with("no"),
            "{feature} is written, and seen nowhere"
        );
        for name in names {
            assert!(known.contains(&name), "{feature}: no row is called {name}");
            seen.push(name);
        }
    }
    let forgotten: Vec<&&str> = known.iter().filter(|name| !seen.contains(name)).collect();
    assert!(forgotten.is_empty(), "the page does not name {forgotten:?}");
}
