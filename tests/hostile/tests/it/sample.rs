//! Good volumes to damage: Linux's and ours.

use std::sync::{Arc, OnceLock};

use buttress_hostile::image::Image;

/// A volume that this program made and filled, with every kind of item.
pub(crate) fn ours() -> Arc<Image> {
    static MADE: OnceLock<Arc<Image>> = OnceLock::new();
    Arc::clone(MADE.get_or_init(|| Arc::new(Image::scan(buttress_hostile::sample::filled()))))
}

/// Small volumes, ours and Linux's.
pub(crate) fn small() -> Arc<Vec<Image>> {
    static MADE: OnceLock<Arc<Vec<Image>>> = OnceLock::new();
    Arc::clone(MADE.get_or_init(|| Arc::new(buttress_hostile::sample::small_bases())))
}

/// A volume that `mkfs.btrfs` made and filled. `None` without that program.
pub(crate) fn linux(nodesize: u32) -> Option<Arc<Image>> {
    let device = buttress_hostile::sample::linux(nodesize, "crc32c");
    if device.is_none() {
        assert!(std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none(), "mkfs.btrfs lacks");
        eprintln!("SKIPPED: mkfs.btrfs lacks (apt-get install btrfs-progs)");
    }
    Some(Arc::new(Image::scan(device?)))
}
