//! Volumes of 10 to 10,000 groups. No single operation grows faster than a logarithm, opening and
//! the first bytes of a file among them. Reading all groups grows no faster than the volume. By
//! counts alone: requests, nodes, groups looked at.

use std::sync::Arc;

use buttress_base::cow_map::FAN;
use buttress_bench::groups::{Row, device_bytes, make_volume, measure};
use buttress_block::{Device, MemoryDevice};

fn row(groups: u64) -> Row {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(device_bytes(groups)));
    make_volume(&device, groups).expect("a volume");
    measure(&device, groups, 2000).expect("it is measured")
}

/// Groups that are compared when no group has all that is wanted, and a few that are asked before.
const IN_VAIN_MAX: f64 = 80.0;

/// Nodes of 16 KiB hold so many items of a group at the least: its own, its chunk's and its device
/// extent's.
const GROUPS_PER_NODE: u64 = 64;

#[test]
fn nothing_grows_faster_than_a_logarithm() {
    let mut before: Option<Row> = None;
    for groups in [10, 1000, 10_000] {
        let row = row(groups);
        assert!(row.chunks >= groups && row.chunks <= groups + groups / 64 + 8, "{row:?}");
        // What a lookup passes, and one more chunk copies.
        let height = (row.chunks as f64).log(FAN as f64).ceil() as u64;
        assert!(row.map_height <= height, "{row:?}");
        assert!(row.known_reads <= 24 + row.chunks / GROUPS_PER_NODE, "{row:?}");
        assert!(row.first_reads <= 4.0, "{row:?}");
        assert!(row.probes < 2.0, "{row:?}");
        assert!(row.probes_in_vain < IN_VAIN_MAX, "{row:?}");
        if let Some(before) = before {
            // A tree of a hundred times as much is a level higher; there are seven, and a leaf may
            // split.
            assert!(row.commit_nodes <= before.commit_nodes + 10.0, "{before:?}, {row:?}");
            // The trees that are asked on the way to the first bytes, and the tree of chunks.
            assert!(row.open_reads <= before.open_reads + 6, "{before:?}, {row:?}");
        }
        before = Some(row);
    }
}
