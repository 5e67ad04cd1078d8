//! Listing directories.

use std::collections::BTreeSet;
use std::fs;

use crate::mounted::mounted;

const COUNT: usize = 10_000;

/// Ten thousand names are listed once each, before and after the kernel has let go of them.
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

/// Removing what is listed while it is listed misses nothing, as `rm -r` relies on.
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

/// A listing that is taken up again at a remembered place goes on behind it.
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
