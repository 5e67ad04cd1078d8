//! Tests of devices with short holes.

use super::*;

const MIB: u64 = 1 << 20;

/// Devices for three copies. Each has `count` holes of `mib` MiB.
fn space(holes: &[(u64, u64)]) -> DeviceSpace {
    let mut space = DeviceSpace::new(false);
    for (index, (count, mib)) in holes.iter().enumerate() {
        let id = DeviceId(index as u64 + 1);
        let item = DeviceItem {
            devid: id,
            total_bytes: 4 << 30,
            ..DeviceItem::parse(&[0; 98]).expect("an item")
        };
        space.add_device(item, true);
        space.take(id, 0, 4 << 30);
        (0..*count).for_each(|hole| space.give(id, (1 + hole * 40) * MIB, mib * MIB));
    }
    space.set_target(BlockGroupFlags::METADATA, Some(Profile::Raid1c3));
    space
}

/// D1: with short holes, the reported free space is several times the space that chunks can take.
/// Reservations still get no more than chunks can take.
#[test]
fn short_holes_give_no_more_than_chunks_take() {
    let kind = BlockGroupFlags::METADATA;
    let mut space = space(&[(64, 16), (64, 16), (1, 342), (1, 342), (1, 342)]);
    assert!(space.available(kind) > 2 * 342 * MIB, "{}", space.available(kind));
    let reserved = 342 * MIB;
    assert!(space.may_reserve(kind, reserved, false) && space.has(kind, reserved));
    let more = reserved + 16 * MIB;
    assert!(more < space.reservable(kind) && !space.may_reserve(kind, more, false));
    space.keep_for_metadata(reserved);
    assert!(space.leaves_kept(kind));
    // Data fills the long holes of two devices.
    space.take(DeviceId(3), MIB, 342 * MIB);
    space.take(DeviceId(4), MIB, 342 * MIB);
    assert!(space.leaves_kept(kind), "short ones will do beside the last");
    space.take(DeviceId(5), MIB, 64 * MIB);
    assert!(!space.leaves_kept(kind));
    space.keep_exactly(0);
    assert!(space.leaves_kept(kind));
}
