//! Whole volumes with one to four things wrong and every checksum right: opened, listed, read, changed.

use std::sync::Arc;

use buttress_hostile::image::Image;
use buttress_hostile::{exercise, judge, targets};

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

/// Linux's, with large nodes, and with small ones, which make more storeys.
#[test]
fn linux_volumes() {
    for nodesize in [16384, 4096] {
        if let Some(image) = sample::linux(nodesize) {
            damage(&format!("linux {nodesize}"), image, (0, 500));
        }
    }
}

/// The judge reads them, and mends what can be mended.
#[test]
fn the_judge_answers() {
    for image in [Some(sample::ours()), sample::linux(4096)].into_iter().flatten() {
        each("judge", (0, 250), |seed| choices(seed, 96), move |bytes| judge::judge(&image, bytes));
    }
}
