//! Whole volumes with one to four things wrong and every checksum right: opened, listed, read, changed.

use std::sync::Arc;

use buttress_hostile::image::Image;
use buttress_hostile::{exercise, targets};

use crate::{choices, each, sample};

fn damage(name: &str, image: Arc<Image>, seeds: (u64, u64)) {
    each(name, seeds, |seed| choices(seed, 96), move |bytes| targets::image(&image, bytes));
}

/// Undamaged volumes pass without an error, so that what the others meet is the damage.
#[test]
fn good_volumes_have_no_errors() {
    let images = [Some(sample::ours()), sample::linux(4096), sample::linux(16384)];
    for image in images.into_iter().flatten() {
        let outcome = exercise::exercise(image.device.fork(), false);
        assert!(outcome.opened && outcome.names > 100, "{outcome:?}");
        // Places beyond the end of a file hold no data, and that is an error by its name.
        let found = exercise::exercise(image.device.fork(), true);
        assert!(found.opened && found.done > outcome.done, "{found:?}");
    }
}

/// Ours.
#[test]
fn our_volumes() {
    damage("ours", sample::ours(), (0, 800));
}

/// Linux's, with small nodes, which make more storeys.
#[test]
fn linux_volumes_of_small_nodes() {
    if let Some(image) = sample::linux(4096) {
        damage("linux 4096", image, (0, 500));
    }
}

/// Linux's.
#[test]
fn linux_volumes() {
    if let Some(image) = sample::linux(16384) {
        damage("linux 16384", image, (0, 500));
    }
}
