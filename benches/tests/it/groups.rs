//! Volumes of 10 to 10,000 groups. The cost of a single operation, of opening, and of reading the
//! first bytes of a file grows at most as a logarithm. Reading all groups grows no faster than the
//! volume. The test uses counts alone: requests, nodes, examined groups.

use std::sync::Arc;

use buttress_base::cow_map::FAN;
use buttress_bench::groups::{Row, device_bytes, make_volume, measure};
use buttress_block::{Device, MemoryDevice};

fn row(groups: u64) -> Row {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(device_bytes(groups)));
    make_volume(&device, groups).expect("a volume");
    measure(&device, groups, 2000).expect("it is measured")
}

/// The most groups that are examined if no group has the wanted space.
const IN_VAIN_MAX: f64 = 80.0;

/// A node of 16 KiB holds the items of at least this many groups: block group, chunk and device
/// extent.
const GROUPS_PER_NODE: u64 = 64;

#[test]
fn work_grows_at_most_logarithmically() {
    let mut before: Option<Row> = None;
    for groups in [10, 1000, 10_000] {
        let row = row(groups);
        assert!(row.chunks >= groups && row.chunks <= groups + groups / 64 + 8, "{row:?}");
        // A lookup passes one node of the chunk map for each level. An added chunk copies as many
        // nodes.
        let height = (row.chunks as f64).log(FAN as f64).ceil() as u64;
        assert!(row.map_height <= height, "{row:?}");
        assert!(row.known_reads <= 24 + row.chunks / GROUPS_PER_NODE, "{row:?}");
        assert!(row.first_reads <= 4.0, "{row:?}");
        assert!(row.probes < 2.0, "{row:?}");
        assert!(row.probes_in_vain < IN_VAIN_MAX, "{row:?}");
        if let Some(before) = before {
            // A tree with a hundred times as many items is a level higher. There are seven trees,
            // and a leaf may split.
            assert!(row.commit_nodes <= before.commit_nodes + 10.0, "{before:?}, {row:?}");
            // At most six trees are read before the first bytes, including the chunk tree, and each
            // may be a level higher.
            assert!(row.open_reads <= before.open_reads + 6, "{before:?}, {row:?}");
        }
        before = Some(row);
    }
}
