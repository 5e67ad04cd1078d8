//! A volume of a thousand block groups, nine tenths full and in pieces: `btrfs check` finds
//! nothing. Linux mounts the volume and allocates on it, and then we mount it and allocate again.

use buttress_bench::groups::{device_bytes, make_volume, measure, open};
use buttress_interop::linux::{Images, has_linux_btrfs};

const GROUPS: u64 = 1000;

#[test]
fn linux_goes_on_with_a_thousand_groups() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, device_bytes(GROUPS));
    make_volume(&open(images.path()).expect("the image"), GROUPS).expect("a volume");
    images.check();
    let mount = images.mount("");
    mount.shell("test $(stat -c %s filler) -gt $((850 << 30)) && fallocate -l 3G more && sync");
    mount.unmount();
    images.check();
    let row = measure(&open(images.path()).expect("the image"), GROUPS, 100).expect("measured");
    assert!(row.chunks > GROUPS, "{row:?}");
    images.check();
}
