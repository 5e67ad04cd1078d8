//! Another process works in the same directories as a copy, and tries to lead the copy elsewhere by
//! links.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long each test tries.
const TIME: Duration = Duration::from_millis(1500);

/// Puts links to `victim` in the place of files and directories that are being made. Removes the
/// links again. Repeats both steps until `is_over`.
fn meddle(folder: &Path, victim: &Path, outside: &Path, is_over: &AtomicBool) {
    let spare = folder.with_extension("spare");
    while !is_over.load(Ordering::Relaxed) {
        for number in 0..40 {
            for (name, target) in
                [(format!("file-{number}"), victim), (format!("dir-{number}"), outside)]
            {
                let name = folder.join(name);
                // Each of these calls may fail: the next try may succeed.
                let _ = std::fs::remove_file(&spare);
                let _ = symlink(target, &spare);
                let _ = std::fs::rename(&name, folder.with_extension("away"));
                let _ = std::fs::rename(&spare, &name);
                let _ = std::fs::remove_file(&name);
                let _ = std::fs::remove_dir_all(folder.with_extension("away"));
                let _ = std::fs::remove_file(folder.with_extension("away"));
            }
        }
    }
}

/// Files with modes and several names, and directories, are copied out while links replace their
/// names. The target of the links keeps its content, its mode and its names.
#[test]
fn copies_write_through_no_link_that_appears() {
    let bench = crate::bench();
    let source = bench.path("source");
    for number in 0..40 {
        let dir = source.join(format!("dir-{number}"));
        std::fs::create_dir_all(&dir).expect("a folder");
        std::fs::write(dir.join("inner"), "from the volume").expect("a file");
        let file = source.join(format!("file-{number}"));
        std::fs::write(&file, "from the volume").expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o777)).expect("ours");
        std::fs::hard_link(dir.join("inner"), source.join(format!("name-{number}")))
            .expect("a link");
    }
    bench.ok(&["mkfs", "image", "--size", "300M", "--rootdir", "source"]);
    let outside = bench.path("outside");
    std::fs::create_dir(&outside).expect("a folder");
    let victim = outside.join("victim");
    std::fs::write(&victim, "mine").expect("a file");
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).expect("ours");

    let (is_over, begin) = (AtomicBool::new(false), Instant::now());
    let mut whole = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| meddle(&bench.path("target"), &victim, &outside, &is_over));
        while begin.elapsed() < TIME {
            let _ = std::fs::remove_dir_all(bench.path("target"));
            // The copy may fail, as it should when a name leads elsewhere.
            let output = bench.run(&["cp", "-a", "image:/", "target"]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!error.contains("panicked"), "{error}");
            whole += u32::from(output.status.success());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let metadata = victim.metadata().expect("it is there");
    assert_eq!(std::fs::read(&victim).expect("it is there"), b"mine");
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600, "{whole} copies came through");
    let names = std::fs::read_dir(&outside).expect("it is there").count();
    assert_eq!(names, 1, "nothing was made outside");
    let mode = outside.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o7000, 0);
}

/// Files become links to a secret while they are copied in. The secret is not copied.
#[test]
fn copies_read_through_no_link_that_appears() {
    let bench = crate::bench();
    let source = bench.path("source");
    std::fs::create_dir(&source).expect("a folder");
    let outside = bench.path("outside");
    std::fs::create_dir(&outside).expect("a folder");
    let secret = outside.join("secret");
    std::fs::write(&secret, "a secret that nobody may see".repeat(200)).expect("a file");
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    let (is_over, begin) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for number in 0..20 {
                    let _ = std::fs::write(source.join(format!("file-{number}")), "known");
                    let dir = source.join(format!("dir-{number}"));
                    let _ = std::fs::remove_file(&dir);
                    let _ = std::fs::create_dir(&dir);
                }
                for number in 0..20 {
                    let (link, dir_link) = (source.join("spare"), source.join("spare-dir"));
                    let _ = symlink(&secret, &link);
                    let _ = std::fs::rename(&link, source.join(format!("file-{number}")));
                    let _ = std::fs::remove_dir(source.join(format!("dir-{number}")));
                    let _ = symlink(&outside, &dir_link);
                    let _ = std::fs::rename(&dir_link, source.join(format!("dir-{number}")));
                }
                for number in 0..20 {
                    let _ = std::fs::remove_file(source.join(format!("file-{number}")));
                }
            }
        });
        let mut round = 0;
        while begin.elapsed() < TIME {
            round += 1;
            let target = format!("image:/copy-{round}");
            let output = bench.run(&["cp", "-r", "source", &target]);
            assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // `grep` searches these 300 MiB a hundred times faster than unoptimised code here.
    let mut search = Command::new("grep");
    search.args(["-qaF", "a secret that nobody may see"]).arg(bench.path("image"));
    let found = search.status().expect("grep runs").code();
    assert_eq!(found, Some(1), "the secret came in");
    bench.ok(&["check", "image"]);
}
