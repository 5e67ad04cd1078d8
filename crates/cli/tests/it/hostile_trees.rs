//! Folders made to do harm, given to `mkfs --rootdir`: every kind of file, odd names, links out of
//! the folder and in circles, files that change while they are copied. The program ends, and leaves
//! a clean volume or no volume.
//!
//! `BUTTRESS_ROUND` chooses other trees.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;

use crate::text;

const TREES: u64 = 4;

/// A valid but unusual name.
fn name(rng: &mut Rng, number: u64) -> PathBuf {
    let mut bytes = match rng.below(6) {
        0 => vec![b'n'; 240],
        1 => vec![0xff, 0xfe, b'\n', b'\t', 0x1b],
        2 => b" -rf ".to_vec(),
        3 => "\u{202e}\u{0301}\u{1f4a9}".into(),
        4 => b"..x".to_vec(),
        _ => b"plain".to_vec(),
    };
    bytes.extend(number.to_string().into_bytes());
    PathBuf::from(OsString::from_vec(bytes))
}

/// Makes a tree. Returns the sockets, which must stay open.
fn plant(root: &Path, outside: &Path, rng: &mut Rng) -> Vec<UnixListener> {
    let (mut folders, mut files, mut kept) = (vec![root.to_owned()], Vec::new(), Vec::new());
    for number in 0..70 {
        let folder = rng.choose(&folders).expect("the first").clone();
        let path = folder.join(name(rng, number));
        let long = path.as_os_str().len() > 3000;
        match rng.below(10) {
            0 | 1 if !long => {
                std::fs::create_dir(&path).expect("a folder");
                folders.push(path);
            }
            2 => symlink(outside, &path).expect("a link out"),
            3 => symlink(&path, &path).expect("a link to itself"),
            4 => symlink("x".repeat(4000), &path).expect("a long link"),
            5 => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).expect("a fifo");
            }
            // The path of a socket has room for a hundred bytes.
            6 if path.as_os_str().len() < 100 => {
                kept.push(UnixListener::bind(&path).expect("a socket"));
            }
            7 if !files.is_empty() => {
                let old: &PathBuf = rng.choose(&files).expect("some");
                std::fs::hard_link(old, &path).expect("another name");
            }
            _ => {
                let file = std::fs::File::create(&path).expect("a file");
                let mut bytes = vec![0; rng.below(30_000) as usize];
                rng.fill(&mut bytes);
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes, rng.below(3) * 100_000)
                    .expect("room");
                let flags = rustix::fs::XattrFlags::empty();
                // Not every file system has extended attributes.
                let _ =
                    rustix::fs::setxattr(&path, "user.x", &bytes[..bytes.len().min(900)], flags);
                files.push(path);
            }
        }
    }
    kept
}

/// Replaces files by links and fifos, truncates files, and puts the files back.
fn meddle(root: &Path, outside: &Path, is_over: &AtomicBool) {
    let (file, other) = (root.join("meddled"), root.join("meddled-2"));
    let mut turn = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let _ = std::fs::remove_file(&other);
        let _ = match turn % 4 {
            0 => symlink(outside, &other),
            1 => std::fs::write(&other, vec![b'm'; 50_000]),
            2 => rustix::fs::mknodat(
                rustix::fs::CWD,
                &other,
                rustix::fs::FileType::Fifo,
                0o600.into(),
                0,
            )
            .map_err(Into::into),
            _ => std::fs::write(&other, "short"),
        };
        let _ = std::fs::rename(&other, &file);
        turn += 1;
    }
}

#[test]
fn rootdir_takes_any_tree() {
    let round: u64 = std::env::var("BUTTRESS_ROUND").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    for seed in round * 1000..round * 1000 + TREES {
        let bench = crate::bench();
        let (root, outside) = (bench.path("tree"), bench.path("outside"));
        std::fs::create_dir(&root).expect("a folder");
        std::fs::write(&outside, "SECRET-OF-SOMEBODY-ELSE").expect("a file");
        let kept = plant(&root, &outside, &mut Rng::new(seed));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if seed % 2 == 1 {
                scope.spawn(|| meddle(&root, &outside, &is_over));
            }
            let words = ["mkfs", "image", "--size", "300M", "--rootdir", text(&root)];
            let output = bench.command(&words).output().expect("it starts");
            is_over.store(true, Ordering::Relaxed);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // The program may fail because a file is gone, but it must not end by a signal or a
            // panic.
            assert!(
                output.status.code().is_some() && !said.contains("panicked"),
                "seed {seed}: {said}"
            );
            assert!(seed % 2 == 1 || output.status.success(), "seed {seed}: {said}");
            if output.status.success() {
                bench.ok(&["check", "image"]);
                let mut grep = std::process::Command::new("grep");
                grep.args(["-q", "SECRET-OF-SOMEBODY-ELSE"]).arg(bench.path("image"));
                assert!(
                    !grep.status().expect("grep").success(),
                    "seed {seed}: a link was followed"
                );
            }
        });
        let links = std::fs::metadata(&outside).expect("untouched");
        assert_eq!((links.nlink(), links.len()), (1, 23), "seed {seed}");
        drop(kept);
    }
    eprintln!("BUTTRESS_COUNT trees {TREES}");
}
