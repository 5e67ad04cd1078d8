//! Encrypted volumes in stores, used through the program.

use std::path::Path;

use crate::live::Mounted;
use crate::unmounting::can_mount;
use crate::words::said;
use crate::{Bench, bench, text};

/// All files below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Checks that no object has any of these words in its content or in its name.
fn hides(bench: &Bench, words: &[&[u8]]) {
    let all = files(&bench.path("volume"));
    assert!(all.len() > 5, "{all:?}");
    for path in all {
        let content = std::fs::read(&path).expect("an object");
        let name = path.strip_prefix(bench.folder()).expect("within").as_os_str();
        for word in words {
            let has = |text: &[u8]| text.windows(word.len()).any(|part| part == *word);
            let shown = String::from_utf8_lossy(word);
            let is_key = path.parent().is_some_and(|folder| folder.ends_with("key"));
            assert!(is_key || !has(&content), "{} has {shown:?}", path.display());
            assert!(!has(name.as_encoded_bytes()), "{} has {shown:?}", path.display());
        }
    }
}

/// Verbs and mounts use a volume with a key file. Its objects reveal nothing. The message names a
/// wrong or missing key. `rekey` changes the key.
#[test]
fn objects_of_an_encrypted_volume_say_nothing() {
    let bench = bench();
    let plain = format!("file://{}", bench.path("volume").display());
    std::fs::write(bench.path("key"), [9; 64]).expect("a file");
    std::fs::write(bench.path("other-key"), [8; 64]).expect("a file");
    let keyed = |name: &str| format!("{plain}?key-file={}", bench.path(name).display());
    let volume = keyed("key");
    bench.ok(&["mkfs", &volume, "--size", "1G", "--label", "a-label-to-hide"]);
    std::fs::write(bench.path("file-to-hide"), b"words to hide ".repeat(70_000)).expect("a file");
    bench.ok(&["cp", "file-to-hide", &format!("{volume}:/")]);
    bench.ok(&["subvolume", "create", &format!("{volume}:/subvolume-to-hide")]);
    if can_mount() {
        let options = format!("key-file={}", bench.path("key").display());
        let mounted = Mounted::of(&bench, &plain, &["-o", &options]);
        std::fs::write(bench.path("mnt/more-to-hide"), "more words to hide").expect("a file");
        scrub_without_key(&bench);
        mounted.end();
        assert_eq!(bench.ok(&["cat", &format!("{volume}:/more-to-hide")]), "more words to hide");
    }
    let host = host_name();
    hides(&bench, &[b"to-hide", b"to hide", b"_BHRfS_M", b"device_len", host.as_bytes()]);
    assert_eq!(bench.ok(&["cat", &format!("{volume}:/file-to-hide")]).len(), 14 * 70_000);
    bench.ok(&["check", "--check-data-csum", &volume]);
    bench.ok(&["remote", "usage", &volume]);
    bench.fails(&["ls", &plain], 1, &["encrypted", "key-file", "BUTTRESS_PASSPHRASE"]);
    bench.fails(&["ls", &keyed("other-key")], 1, &["key file is wrong"]);
    bench.fails(&["ls", &keyed("no-key")], 1, &["no-key"]);
    bench.fails(&["remote", "rekey", &volume], 2, &["--new-key-file"]);
    bench.ok(&["remote", "rekey", &volume, "--new-key-file", "other-key"]);
    bench.fails(&["ls", &volume], 1, &["key file is wrong"]);
    let volume = keyed("other-key");
    bench.ok(&["cp", &volume, "copy.img"]);
    bench.ok(&["check", "--check-data-csum", "copy.img"]);
    bench.ok(&["remote", "gc", &format!("{volume}&min-keep=0")]);
    bench.ok(&["check", "--check-data-csum", &volume]);
    bench.ok(&["remote", "delete", &volume]);
    assert!(files(&bench.path("volume")).is_empty());
}

/// A scrub of the mount asks the server, which has the key. A reader of its own would need one.
fn scrub_without_key(bench: &Bench) {
    let ours = bench.path("btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let top = bench.path("mnt");
    for (words, line) in [
        (["scrub", "start", "-B"], "no errors found"),
        (["scrub", "status", "-R"], "Status:           finished"),
        (["scrub", "resume", "-B"], "nothing to resume"),
    ] {
        let words = [&words[..], &[text(&top)]].concat();
        let (told, _) = said(bench, &ours, &words);
        assert!(told.contains(line), "{words:?}: {told}");
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux");
    format!("{:?}", name.trim())
}

/// With a passphrase in the environment, a volume is made and opened again.
#[test]
fn a_passphrase_opens_what_it_made() {
    let bench = bench();
    let volume = format!("file://{}", bench.path("volume").display());
    let with = |passphrase: &str, args: &[&str]| {
        let mut command = bench.command(args);
        let output = command.env("BUTTRESS_PASSPHRASE", passphrase).output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(with("open sesame", &["mkfs", &volume, "--size", "1G"]).0);
    assert!(with("open sesame", &["ls", &volume]).0);
    let (is_open, said) = with("open barley", &["ls", &volume]);
    assert!(!is_open && said.contains("passphrase"), "{said}");
    bench.fails(&["ls", &volume], 1, &["BUTTRESS_PASSPHRASE"]);
}
