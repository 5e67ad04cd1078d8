//! Whole volumes with one to four faults and right checksums are opened, listed, read and changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_format::{Key, Kind};
use buttress_hostile::image::Image;
use buttress_hostile::{checker, exercise, mutate, targets};

use crate::{choices, each, sample};

/// The offsets of the compression and of the kind in a file extent item.
const EXTENT_CODEC: usize = 16;
const EXTENT_TYPE: usize = 20;

fn damage(name: &str, image: Arc<Image>, seeds: (u64, u64)) {
    let one = move |bytes: &[u8]| targets::image(std::slice::from_ref(&image), bytes);
    each(name, seeds, |seed| choices(seed, 96), one);
}

/// Undamaged volumes pass without an error, so errors of the other tests come from the damage.
#[test]
fn good_volumes_have_no_errors() {
    let images = [Some(sample::ours()), sample::linux(4096), sample::linux(16384)];
    for image in images.into_iter().flatten() {
        let outcome = exercise::exercise(image.device.fork(), false);
        assert!(outcome.opened && outcome.names > 100, "{outcome:?}");
        // The search for data beyond the end of a file fails, which counts as an error.
        let found = exercise::exercise(image.device.fork(), true);
        assert!(found.opened && found.done > outcome.done, "{found:?}");
        for (writes, first) in [(false, outcome), (true, found)] {
            let behind = exercise::exercise_as(image.device.fork(), writes, true);
            assert_eq!(behind, first, "the order in which it is read changes nothing");
        }
    }
}

/// Volumes of ours.
#[test]
fn our_volumes() {
    damage("ours", sample::ours(), (0, 200));
}

/// Small volumes, ours and Linux's, with every kind of item.
#[test]
fn small_volumes() {
    let images = sample::small();
    for image in images.iter() {
        let outcome = exercise::exercise(image.device.fork(), true);
        assert!(outcome.opened && outcome.names > 10, "{outcome:?}");
    }
    // Our volume has inline data of each compression. The data lies in nodes, and damaged nodes get
    // right checksums, so damage reaches the codecs.
    let leaves = images[0].nodes.iter().flat_map(|place| mutate::leaf_items(&place.bytes));
    let extents = leaves.filter(|item| item[8] == Kind::EXTENT_DATA.0);
    let inline = extents.filter(|item| item[Key::LEN + EXTENT_TYPE] == 0);
    let codecs: BTreeSet<u8> = inline.map(|item| item[Key::LEN + EXTENT_CODEC]).collect();
    assert_eq!(codecs, BTreeSet::from([0, 1, 2, 3]));
    let any = move |bytes: &[u8]| targets::image(&images, bytes);
    each("small", (0, 2000), |seed| choices(seed, 96), any);
}

/// Volumes of Linux, with large nodes, and with small nodes, which make deeper trees.
#[test]
fn linux_volumes() {
    for nodesize in [16384, 4096] {
        if let Some(image) = sample::linux(nodesize) {
            damage(&format!("linux {nodesize}"), image, (0, 150));
        }
    }
}

/// The checker reads damaged volumes, and repairs all repairable faults.
#[test]
fn the_checker_answers() {
    for image in [Some(sample::ours()), sample::linux(4096)].into_iter().flatten() {
        let one = move |bytes: &[u8]| checker::checker(std::slice::from_ref(&image), bytes);
        each("checker", (0, 60), |seed| choices(seed, 96), one);
    }
    let images = sample::small();
    each(
        "checker, small",
        (0, 1000),
        |seed| choices(seed, 96),
        move |bytes| checker::checker(&images, bytes),
    );
}
