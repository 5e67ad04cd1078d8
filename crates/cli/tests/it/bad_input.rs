//! Files that are no volume, or a damaged volume: the program prints one clear line, ends with a
//! code, and writes nothing.

use std::os::unix::fs::PermissionsExt;

use crate::Bench;

/// Verbs that only need a volume.
const VERBS: [&[&str]; 6] = [&["ls"], &["df"], &["info"], &["dump"], &["tree"], &["stat"]];

fn all_fail(bench: &Bench, image: &str, code: i32, words: &[&str]) {
    for verb in VERBS {
        let mut args = verb.to_vec();
        args.push(image);
        bench.fails(&args, code, words);
    }
}

#[test]
fn no_file() {
    all_fail(&crate::bench(), "nowhere.img", 1, &["nowhere.img", "No such file"]);
}

#[test]
fn an_empty_file() {
    let bench = crate::bench();
    std::fs::write(bench.path("empty"), b"").expect("file");
    all_fail(&bench, "empty", 1, &["empty"]);
    bench.fails(&["mkfs", "empty"], 1, &["empty"]);
}

#[test]
fn a_directory() {
    let bench = crate::bench();
    std::fs::create_dir(bench.path("dir")).expect("dir");
    all_fail(&bench, "dir", 1, &["dir", "a directory"]);
    bench.fails(&["mkfs", "dir", "--size", "1G"], 1, &["a directory"]);
}

#[test]
fn the_wrong_type() {
    let bench = crate::bench();
    all_fail(&bench, "/dev/null", 1, &["character device"]);
    std::fs::write(bench.path("text"), "words\n".repeat(50_000)).expect("file");
    all_fail(&bench, "text", 3, &["text", "no btrfs"]);
    // The message names another filesystem. This image has the magic number and the version of
    // ext4.
    let mut ext = vec![0_u8; 1 << 20];
    ext[1024 + 56..1024 + 58].copy_from_slice(&0xef53_u16.to_le_bytes());
    std::fs::write(bench.path("ext"), ext).expect("file");
    all_fail(&bench, "ext", 3, &["no btrfs", "ext"]);
}

#[test]
fn no_permission() {
    if rustix::process::geteuid().is_root() {
        eprintln!("root may read everything: not tested");
        return;
    }
    let bench = crate::bench();
    bench.volume("x.img", "128M");
    let forbidden = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(bench.path("x.img"), forbidden).expect("chmod");
    all_fail(&bench, "x.img", 1, &["x.img", "ermission denied"]);
}

#[test]
fn a_truncated_image() {
    let bench = crate::bench();
    bench.volume("x.img", "256M");
    let file = std::fs::File::options().write(true).open(bench.path("x.img")).expect("image");
    // The file is cut step by step: first the volume loses its end, then its trees, then its
    // superblock.
    for len in [255 << 20, 1 << 20, 100 << 10] {
        file.set_len(len).expect("cut");
        all_fail(&bench, "x.img", 3, &["x.img", "truncated"]);
    }
    file.set_len(66 << 10).expect("cut");
    all_fail(&bench, "x.img", 3, &["x.img"]);
}

/// A flipped bit anywhere in the superblock or the first nodes never causes a panic. Either the
/// other copy is used, or one line says what is wrong.
#[test]
fn flipped_bits() {
    use std::os::unix::fs::FileExt;
    let bench = crate::bench();
    bench.ok(&["mkfs", "x.img", "--size", "128M", "--metadata", "single"]);
    let file = std::fs::File::options().read(true).write(true).open(bench.path("x.img"));
    let file = file.expect("image");
    let places = (0..160_u64)
        .map(|step| (64 << 10) + step * 25)
        .chain((0..40).map(|step| (1 << 20) + step * 409))
        .chain((0..60).map(|step| (13 << 20) + step * 2731));
    for place in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).expect("read");
        let flipped = [byte[0] ^ (1 << (place % 8))];
        file.write_all_at(&flipped, place).expect("write");
        for verb in ["info", "ls"] {
            let output = bench.run(&[verb, "x.img"]);
            let error = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            assert!(
                matches!(code, Some(0 | 1 | 3 | 4)),
                "{verb}, bit at {place}: {code:?} {error}"
            );
            assert!(!error.contains("panicked"), "{verb}, bit at {place}: {error}");
            assert!(code == Some(0) || error.lines().count() == 1, "{verb}, {place}: {error}");
        }
        file.write_all_at(&byte, place).expect("write");
    }
    bench.ok(&["ls", "x.img"]);
}

/// Options that do not parse, and invalid places.
#[test]
fn wrong_arguments() {
    let bench = crate::bench();
    bench.volume("x.img", "128M");
    bench.fails(&["ls", "x.img:/nowhere"], 1, &["nowhere", "no such file"]);
    bench.fails(&["cat", "x.img:/"], 1, &["regular file"]);
    bench.fails(&["mkdir", "x.img:/"], 2, &["x.img:/"]);
    bench.fails(&["cp", "a", "b"], 2, &["IMG:/path"]);
    bench.fails(&["rm", "x.img:/nowhere"], 1, &["nowhere"]);
    bench.fails(&["dump", "x.img", "--tree", "12345"], 1, &["12345"]);
    bench.fails(&["mv", "x.img:/a", "y.img:/a"], 2, &["one volume"]);
}

/// If only one of a volume's two devices is given, the message names the missing device. The test
/// needs btrfs-progs to make the volume.
#[test]
fn a_missing_device() {
    let bench = crate::bench();
    for name in ["one", "two"] {
        let file = std::fs::File::create(bench.path(name)).expect("file");
        file.set_len(256 << 20).expect("length");
    }
    let made = std::process::Command::new("mkfs.btrfs")
        .args(["--quiet", "--metadata", "raid1", "--data", "raid1", "one", "two"])
        .current_dir(bench.folder())
        .output();
    if made.is_err() {
        eprintln!("btrfs-progs is not installed: not tested");
        return;
    }
    bench.fails(&["ls", "one"], 1, &["2 devices", "missing", "--device"]);
    bench.ok(&["ls", "one", "--device", "two"]);
    bench.ok(&["mkdir", "one:/x", "--device", "two"]);
}
