//! Clients of other projects: the tools of libnbd and QEMU, and fio.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, FileDevice, MemoryDevice};

use crate::Served;

const LEN: u64 = 24 << 20;

/// Whether a program is installed. In CI, all programs must be installed.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    assert!(
        is_here || std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none(),
        "{program} lacks (apt-get install libnbd-bin qemu-utils fio)"
    );
    if !is_here {
        eprintln!("SKIPPED: {program} lacks (apt-get install libnbd-bin qemu-utils fio)");
    }
    is_here
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{said}{complained}",
        output.status
    );
    said
}

/// Makes a file with data, zeroes that are written, and holes.
fn sample(path: &Path) -> Vec<u8> {
    let device = FileDevice::create(path, LEN).expect("a new file");
    let mut rng = Rng::new(5);
    let mut model = vec![0; LEN as usize];
    for _ in 0..40 {
        let len = rng.range(1..400_000);
        let start = rng.below(LEN - len);
        let place = start as usize..(start + len) as usize;
        if rng.chance(1, 4) {
            model[place.clone()].fill(0);
        } else {
            rng.fill(&mut model[place.clone()]);
        }
        device.write_at(start, &model[place]).expect("within the device");
    }
    model
}

/// libnbd understands all answers, lists the export, and maps it; copies in both directions are
/// equal.
#[test]
fn libnbd_agrees() {
    if !has("nbdinfo") || !has("nbdcopy") {
        return;
    }
    let device = Arc::new(MemoryDevice::new(LEN));
    let served = Served::new(device.clone());
    let uri = served.uri();
    let facts = run("nbdinfo", &[&uri]);
    for fact in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 25165824",
        "contexts:\n\t\tbase:allocation",
        "is_read_only: false",
        "can_multi_conn: true",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "can_df: true",
        "block_size_maximum: 33554432",
    ] {
        assert!(facts.contains(fact), "{fact}: {facts}");
    }
    assert!(run("nbdinfo", &["--list", &uri]).contains("export=\"disk\""));

    let (source, target) = (served.folder().join("source"), served.folder().join("target"));
    let model = sample(&source);
    run("nbdcopy", &[source.to_str().expect("ASCII"), &uri, "--flush", "--connections=4"]);
    let map = run("nbdinfo", &["--map", "--json", &uri]);
    assert!(map.contains("\"type\": 0") && map.contains("\"type\": 3"), "{map}");
    run("nbdcopy", &[&uri, target.to_str().expect("ASCII")]);
    assert!(std::fs::read(&target).expect("it was copied") == model);
    let mut found = vec![0; LEN as usize];
    device.read_at(0, &mut found).expect("within the device");
    assert!(found == model);
    assert!(device.resident_bytes() < LEN, "holes stayed holes");
}

/// QEMU copies a file onto the export, finds both equal, and reads and writes patterns with every
/// flag.
#[test]
fn qemu_agrees() {
    if !has("qemu-img") || !has("qemu-io") {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory for the test");
    let device = FileDevice::create(folder.path().join("image"), LEN).expect("a new file");
    let served = Served::new(Arc::new(device));
    let uri = served.uri();
    let source = folder.path().join("source");
    let model = sample(&source);
    let source = source.to_str().expect("ASCII");
    run("qemu-img", &["convert", "-n", "-W", "-f", "raw", "-O", "raw", source, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
    run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(std::fs::read(folder.path().join("image")).expect("a file") == model);

    let script = [
        "write -P 7 1000 100000",
        "write -f -P 8 5M 3M",
        "read -P 7 1000 100000",
        "write -z 2000 4096",
        "write -z -u 6M 1M",
        "read -P 0 2000 4096",
        "read -P 0 6M 1M",
        "read -P 8 5M 1M",
        "discard 7M 1M",
        "aio_write -P 9 9M 64k",
        "aio_write -P 10 10M 64k",
        "aio_read 0 2M",
        "aio_flush",
        "flush",
        "read -P 9 9M 64k",
        "read -P 10 10M 64k",
    ];
    let mut arguments = vec!["-f", "raw"];
    for command in script {
        arguments.extend(["-c", command]);
    }
    arguments.push(&uri);
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed") && !said.contains("Pattern"), "{said}");
}

/// fio's engine, if fio was built with it, writes and verifies random blocks.
#[test]
fn fio_agrees() {
    if !has("fio") || !run("fio", &["--enghelp"]).contains("nbd") {
        return;
    }
    let served = Served::new(Arc::new(MemoryDevice::new(LEN)));
    let uri = format!("--uri={}", served.uri());
    run(
        "fio",
        &[
            "--name=x",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bs=4k",
            "--size=8m",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--fsync=64",
            "--randseed=1",
        ],
    );
    assert_eq!(served.stop().expect("flushed").failed, 0);
}

/// A whole btrfs volume, made elsewhere, is copied in through the server and out again. It is
/// unchanged, and the checker finds it clean.
#[test]
fn a_volume_passes_through() {
    if !has("nbdcopy") || !has("mkfs.btrfs") || !has("btrfs") {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory for the test");
    let path = |name: &str| folder.path().join(name).to_str().expect("ASCII").to_owned();
    let (tree, made, kept, back) = (path("tree"), path("made"), path("kept"), path("back"));
    std::fs::create_dir(&tree).expect("a folder");
    let mut rng = Rng::new(6);
    for number in 0..60 {
        let mut bytes = vec![0; rng.below(300_000) as usize];
        rng.fill(&mut bytes);
        std::fs::write(format!("{tree}/file-{number}"), bytes).expect("a file");
    }
    const VOLUME: u64 = 128 << 20;
    drop(FileDevice::create(&made, VOLUME).expect("a new file"));
    run("mkfs.btrfs", &["-q", "--rootdir", &tree, &made]);

    let device = FileDevice::create(&kept, VOLUME).expect("a new file");
    let served = Served::new(Arc::new(device));
    run("nbdcopy", &[&made, &served.uri(), "--flush"]);
    run("nbdcopy", &[&served.uri(), &back]);
    served.stop().expect("flushed");
    for copy in [&kept, &back] {
        run("cmp", &[&made, copy]);
        run("btrfs", &["check", "--check-data-csum", copy]);
    }
}
