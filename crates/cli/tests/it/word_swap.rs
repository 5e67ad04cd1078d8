//! The program as `btrfs`: files for the kernel's swap space.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use buttress_test_program::Bench;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::text;
use crate::words::{bench_of_words, said};

const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// Makes a file of 16 MiB, and returns what `map-swapfile` says of its place: the first byte on the
/// device. There must be the header of swap space.
fn made(bench: &Bench, ours: &Path, place: &str) -> u64 {
    let words = ["filesystem", "mkswapfile", "-s", "16M", "-U", UUID, place];
    let (line, code) = said(bench, ours, &words);
    assert_eq!(line, format!("create swapfile {place} size 16.00MiB (16777216)\n"));
    assert_eq!(code, Some(0));
    let (again, code) = said(bench, ours, &words);
    assert!(again.starts_with("ERROR: cannot create new swapfile") && code == Some(1), "{again}");
    let (both, code) = said(bench, ours, &["inspect-internal", "map-swapfile", place]);
    assert_eq!(code, Some(0), "{both}");
    let start = both.lines().next().and_then(|line| line.strip_prefix("Physical start: "));
    let start: u64 = start.expect("a line").trim().parse().expect("a number");
    let wanted = format!("Physical start: {start:>12}\nResume offset:  {:>12}\n", start / 4096);
    assert_eq!(both, wanted);
    let (offset, _) = said(bench, ours, &["inspect-internal", "map-swapfile", "-r", place]);
    assert_eq!(offset, format!("{}\n", start / 4096));
    start
}

/// The header at this place of the image, as the kernel reads it.
fn expect_header(image: &Path, start: u64) {
    let mut page = vec![0; 4096];
    let file = std::fs::File::open(image).expect("an image");
    file.read_exact_at(&mut page, start).expect("a page");
    assert_eq!(&page[4086..], b"SWAPSPACE2");
    assert_eq!(page[1024..1032], [1, 0, 0, 0, 0xff, 0x0f, 0, 0], "version and last page");
    assert_eq!(page[1036..1040], [0x11; 4], "the UUID");
}

/// Linux swaps to files that were made in an image and on a mount.
#[test]
fn linux_swaps_to_files() {
    let needed = ["mount", "umount", "losetup", "swapon", "swapoff", "lsattr"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let Some((bench, ours)) = bench_of_words() else { return };
    let (image, top) = (bench.path("image"), bench.path("lx"));
    bench.ok(&["mkdir", "image:/folder"]);
    let place = format!("{}:/folder/swap", text(&image));
    expect_header(&image, made(&bench, &ours, &place));
    let mounted = Mounted::new(&bench, &[]);
    let other = bench.path("mnt/other");
    let start = made(&bench, &ours, text(&other));
    let metadata = other.metadata().expect("the mount shows it");
    assert_eq!((metadata.len(), metadata.mode() & 0o777), (16 << 20, 0o600));
    mounted.end();
    expect_header(&image, start);
    check(&image);

    std::fs::create_dir(&top).expect("a folder");
    let device = run("losetup", &["--find", "--show", text(&image)]);
    run("mount", &[device.trim(), text(&top)]);
    for name in ["folder/swap", "other"] {
        let file = top.join(name);
        assert!(run("lsattr", &[text(&file)]).split(' ').next().is_some_and(|f| f.contains('C')));
        run("swapon", &[text(&file)]);
        let swaps = std::fs::read_to_string("/proc/swaps").expect("a list");
        run("swapoff", &[text(&file)]);
        assert!(swaps.contains(text(&file)), "{swaps}");
    }
    run("umount", &[text(&top)]);
    run("losetup", &["--detach", device.trim()]);
    check(&image);
}

/// Sizes and identifiers that make no file, and files that the kernel would refuse. A volume that
/// is too small keeps nothing of the file.
#[test]
fn files_that_are_no_swap_space() {
    let Some((bench, ours)) = bench_of_words() else { return };
    let place = |name: &str| format!("{}:/{name}", text(&bench.path("image")));
    let make = |options: &[&str], name: &str| {
        let place = place(name);
        let words = [&["filesystem", "mkswapfile"], options, &[&place[..]]].concat();
        said(&bench, &ours, &words)
    };
    let refused = |(line, code): (String, Option<i32>), what: &str| {
        assert!(line.contains(what) && code == Some(1), "{what}: {line}");
    };
    refused(make(&["-s", "10k"], "a"), "ERROR: swapfile needs to be at least 40 KiB");
    refused(make(&["-s", "1M", "-U", "junk"], "a"), "ERROR: UUID not recognized: junk");
    refused(make(&["-s", "10G"], "a"), "ERROR: cannot fallocate file: ");
    assert!(!bench.ok(&["ls", "image:/"]).contains('a'), "nothing stays");
    // A size that is no whole number of pages is rounded down.
    let (line, code) = make(&["-U", "clear", "-s", "2047k"], "small");
    assert!(line.ends_with("small size 2.00MiB (2093056)\n") && code == Some(0), "{line}");

    let host: PathBuf = bench.path("host");
    std::fs::write(&host, vec![7; 100_000]).expect("a file");
    bench.ok(&["cp", text(&host), "image:/plain"]);
    let map = |name: &str| said(&bench, &ours, &["inspect-internal", "map-swapfile", &place(name)]);
    refused(map("plain"), "ERROR: file is not NOCOW");
    // Two copies of data are at two places, of which the kernel would write only one.
    bench.ok(&["balance", "start", "image", "-dconvert=dup"]);
    refused(map("small"), "ERROR: unsupported block group profile: 32");
    check(&bench.path("image"));
}
