//! Listing directories.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::linux::Linux;
use crate::mounted::mounted;

const COUNT: usize = 10_000;
const FEW: usize = 400;

/// Ten thousand names are listed once each, before and after the kernel has forgotten them.
#[test]
fn ten_thousand_names() {
    let Some(mount) = mounted() else { return };
    fs::create_dir(mount.path("many")).expect("a directory");
    let wanted: BTreeSet<String> = (0..COUNT).map(|index| format!("file{index:05}")).collect();
    for name in &wanted {
        fs::File::create(mount.path("many").join(name)).expect("a file");
    }
    let list = |mount: &crate::mounted::Mounted| {
        let names: Vec<String> = fs::read_dir(mount.path("many"))
            .expect("a listing")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("ASCII"))
            .collect();
        assert_eq!(names.len(), COUNT);
        names.into_iter().collect::<BTreeSet<_>>()
    };
    assert!(list(&mount) == wanted);
    let mount = mount.again();
    assert!(list(&mount) == wanted);
    assert!(list(&mount) == wanted, "from what the kernel remembers");
}

/// A listing misses no name, although each listed name is removed meanwhile. `rm -r` relies on
/// that.
#[test]
fn removing_while_listing() {
    let Some(mount) = mounted() else { return };
    fs::create_dir(mount.path("many")).expect("a directory");
    for index in 0..3000 {
        fs::write(mount.path(&format!("many/{index}")), "x").expect("a file");
    }
    for entry in fs::read_dir(mount.path("many")).expect("a listing") {
        fs::remove_file(entry.expect("an entry").path()).expect("it was listed");
    }
    fs::remove_dir(mount.path("many")).expect("nothing is left");
}

/// A listing can go on from any remembered position.
#[test]
fn positions_stay_valid() {
    let Some(mount) = mounted() else { return };
    for index in 0..500 {
        fs::write(mount.path(&format!("{index:03}")), "").expect("a file");
    }
    let mut listing =
        rustix::fs::Dir::new(fs::File::open(mount.path("")).expect("the root")).expect("a listing");
    let all: Vec<(String, i64)> = listing
        .by_ref()
        .map(|entry| entry.expect("an entry"))
        .map(|entry| (entry.file_name().to_str().expect("ASCII").to_owned(), entry.offset()))
        .collect();
    assert_eq!(all.len(), 502, "500 names and two dots");
    for index in [0, 1, 2, 100, 499, 500] {
        listing.seek(all[index].1).expect("a place");
        let next = listing.next().expect("one more").expect("an entry");
        assert_eq!(next.file_name().to_str(), Ok(all[index + 1].0.as_str()), "behind {index}");
    }
}

/// A function that changes a listed name. It also gets the number of names listed so far.
type Change = fn(&Path, usize);

/// Lists a directory and changes it for each name. Returns the number of listed names, the
/// unchanged names among them, and the number of names that came twice.
fn list_and_change(top: &Path, change: Change) -> (usize, BTreeSet<String>, usize) {
    let stays: BTreeSet<String> = (0..FEW).map(|index| format!("stays{index:03}")).collect();
    for name in &stays {
        fs::write(top.join(name), "").expect("a file");
        fs::write(top.join(name.replace("stays", "moves")), "").expect("a file");
    }
    let (mut listed, mut seen, mut twice) = (0, BTreeSet::new(), 0);
    for entry in fs::read_dir(top).expect("a listing") {
        let name = entry.expect("an entry").file_name().into_string().expect("ASCII");
        listed += 1;
        assert!(listed < 100 * FEW, "the listing does not end");
        if stays.contains(&name) && !seen.insert(name.clone()) {
            twice += 1;
        }
        if !name.starts_with("stays") {
            change(&top.join(name), listed);
        }
    }
    (listed, seen, twice)
}

/// The listing of a directory ends as on Linux, although the directory changes meanwhile. The
/// listing has each unchanged name once, and no new name.
#[test]
fn listings_end_while_names_are_made() {
    let Some(mount) = mounted() else { return };
    let Some(linux) = Linux::mounted("defaults") else { return };
    let changes: [(&str, Change); 2] = [
        ("renamed", |path, count| {
            fs::rename(path, path.with_file_name(format!("renamed{count}"))).expect("moved");
        }),
        ("made", |path, count| {
            fs::write(path.with_file_name(format!("made{count}")), "").expect("a file");
        }),
    ];
    for (name, change) in changes {
        let ends = [mount.path(name), linux.path().join(name)].map(|top| {
            fs::create_dir(&top).expect("a directory");
            list_and_change(&top, change)
        });
        let [(_, seen, twice), _] = &ends;
        assert_eq!((seen.len(), *twice), (FEW, 0), "{name}");
        assert_eq!(ends[0], ends[1], "{name}");
    }
}
