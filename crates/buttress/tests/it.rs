//! The library, compared with `std::fs` under the same calls.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use buttress::{CreateOptions, ErrorKind, FileOptions, Filesystem, MemoryDevice, OpenOptions};

fn volume() -> Filesystem {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    CreateOptions::new(128 << 20).create_on(device).expect("made")
}

/// Operations on paths give the same results on a Buttress volume and in a folder of the host.
#[test]
fn paths_behave_as_in_std() {
    let fs = volume();
    let host = tempfile::tempdir().expect("folder");
    let at = |path: &str| host.path().join(path);

    fs.create_dir_all("/a/b/c").expect("ours");
    std::fs::create_dir_all(at("a/b/c")).expect("host");
    fs.write("a/b/text", "one").expect("ours");
    std::fs::write(at("a/b/text"), "one").expect("host");
    fs.symlink("b/text", "/a/link").expect("ours");
    std::os::unix::fs::symlink("b/text", at("a/link")).expect("host");
    assert_eq!(fs.read("/a/link").expect("ours"), std::fs::read(at("a/link")).expect("host"));
    assert!(fs.symlink_metadata("/a/link").expect("ours").is_symlink());
    assert!(fs.metadata("/a/link").expect("ours").is_file());
    fs.hard_link("/a/b/text", "/a/second").expect("ours");
    std::fs::hard_link(at("a/b/text"), at("a/second")).expect("host");
    fs.rename("/a/b/text", "/a/b/c/moved").expect("ours");
    std::fs::rename(at("a/b/text"), at("a/b/c/moved")).expect("host");
    assert_eq!(fs.metadata("/a/second").expect("ours").nlink(), 2);

    for path in ["a", "a/b", "a/b/c"] {
        let mut ours: Vec<_> = fs
            .read_dir(path)
            .expect("ours")
            .map(|entry| entry.expect("entry").file_name().to_owned())
            .collect();
        let mut theirs: Vec<_> = std::fs::read_dir(at(path))
            .expect("host")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs, "{path}");
    }

    // Failures have the same kind as on the host.
    let pairs: [(buttress::Result<()>, std::io::Result<()>); 6] = [
        (fs.remove_dir("/a/b"), std::fs::remove_dir(at("a/b"))),
        (fs.create_dir("/a"), std::fs::create_dir(at("a"))),
        (fs.create_dir("/x/y"), std::fs::create_dir(at("x/y"))),
        (fs.read("/nothing").map(drop), std::fs::read(at("nothing")).map(drop)),
        (fs.read_dir("/a/second").map(drop), std::fs::read_dir(at("a/second")).map(drop)),
        (fs.read("/a/second/below").map(drop), std::fs::read(at("a/second/below")).map(drop)),
    ];
    for (index, (ours, theirs)) in pairs.into_iter().enumerate() {
        let ours = std::io::Error::from(ours.expect_err("ours"));
        assert_eq!(ours.kind(), theirs.expect_err("host").kind(), "pair {index}: {ours}");
    }
    fs.remove_dir_all("/a").expect("ours");
    assert!(!fs.exists("/a").expect("ours"));
}

/// Reads, writes and seeks in a file give the same results as in a file of the host.
#[test]
fn a_file_has_a_position() {
    let fs = volume();
    let mut file = fs.create_file("f").expect("made");
    file.write_all(b"hello world").expect("written");
    file.seek(SeekFrom::Start(6)).expect("sought");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "world");
    assert!(file.seek(SeekFrom::Current(-100)).is_err());

    let mut end =
        fs.open_with("f", &FileOptions::new().append(true)).expect("opened for appending");
    end.write_all(b"!").expect("appended");
    assert_eq!(fs.read("f").expect("read"), b"hello world!");
    let refused = end.read_at(&mut [0; 4], 0).expect_err("not opened for reading");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let mut middle = [0; 5];
    file.read_exact_at(&mut middle, 2).expect("read");
    assert_eq!(&middle, b"llo w");
    file.read_exact_at(&mut middle, 100).expect_err("behind the end");
    file.set_len(5).expect("cut");
    assert_eq!(file.metadata().len(), 5);
}

/// A circle of links is an error, and a path cannot leave the top of the volume.
#[test]
fn a_path_stays_on_the_volume() {
    let fs = volume();
    fs.symlink("/loop", "/loop").expect("made");
    assert_eq!(fs.read("/loop").expect_err("endless").kind(), ErrorKind::InvalidInput);
    fs.write("/top", "t").expect("written");
    fs.create_dir("/d").expect("made");
    fs.symlink("/top", "/d/absolute").expect("made");
    for path in ["/../top", "d/../../top", "/d/absolute", "./top", "//top"] {
        assert_eq!(fs.read(path).expect(path), b"t");
    }
    assert_eq!(fs.remove_file("..").expect_err("no name").kind(), ErrorKind::InvalidInput);
}

/// A snapshot keeps the former content of the source, and deleting the snapshot leaves the source.
#[test]
fn a_snapshot_keeps_its_content() {
    let fs = volume();
    fs.create_subvolume("/plans").expect("made");
    fs.write("/plans/file", "one").expect("written");
    fs.create_snapshot("/plans", "/before", true).expect("taken");
    fs.write("/plans/file", "two").expect("written");
    assert_eq!(fs.read("/before/file").expect("read"), b"one");
    let refused = fs.write("/before/file", "three").expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    let refused = fs.create_snapshot("/plans/file", "/x", true).expect_err("a file");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    fs.delete_subvolume("/before").expect("deleted");
    assert_eq!(fs.read("/plans/file").expect("read"), b"two");
}

/// A closed volume is opened again with all its content, with little memory and no threads.
#[test]
fn a_volume_is_opened_again() {
    let folder = tempfile::tempdir().expect("folder");
    let image = folder.path().join("v.img");
    let fs = CreateOptions::new(200 << 20).label("again").create(&image).expect("made");
    let block = vec![7; 1 << 20];
    for index in 0..24 {
        fs.write(format!("/{index}"), &block).expect("written");
    }
    fs.close().expect("closed");
    let taken = CreateOptions::new(1 << 30).create(&image).expect_err("it exists");
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);

    let fs = OpenOptions::new().memory(8 << 20).open(&image).expect("opened");
    let second = Filesystem::open(&image).expect_err("in use");
    assert_eq!(second.kind(), ErrorKind::Busy);
    for index in 0..24 {
        assert_eq!(fs.read(format!("/{index}")).expect("read"), block);
    }
    fs.copy("/1", "/copy").expect("copied");
    assert_eq!(fs.read("/copy").expect("read"), block);
    assert!(fs.admin().usage().expect("usage").blocks > 0);
    fs.close().expect("closed");

    let fs = OpenOptions::new().read_only(true).open(&image).expect("opened");
    assert_eq!(fs.write("/1", "x").expect_err("read-only").kind(), ErrorKind::ReadOnly);
    let missing = Filesystem::open(folder.path().join("none.img")).expect_err("no such file");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("none.img"), "{missing}");
}

/// Runs an example that cargo built beside this test.
fn example(name: &str, arguments: &[&std::path::Path]) -> String {
    let test = std::env::current_exe().expect("this program");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("target folder");
    let output = std::process::Command::new(folder.join("examples").join(name))
        .args(arguments)
        .output()
        .expect("the example runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// Each example does what its first line says, and Linux's checker finds no fault in the volume
/// that it writes.
#[test]
fn examples_run() {
    use std::path::Path;
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    assert_eq!(example("greeting", &[&at("hello.img")]), "hello, world\n");
    assert_eq!(example("tree", &[&at("hello.img")]), "greeting\n");
    assert!(example("usage", &[&at("hello.img")]).contains("size      256 MiB"));
    assert!(example("checksums", &[]).starts_with("found: "));

    let notes = at("notes.img");
    for (text, version) in [("milk", "version 1\n"), ("milk and bread", "version 2\n")] {
        let words = [&*notes, Path::new("save"), Path::new("todo"), Path::new(text)];
        assert_eq!(example("history", &words), version);
    }
    assert_eq!(example("history", &[&*notes, Path::new("log")]), "1\n2\n");
    let first = [&*notes, Path::new("show"), Path::new("todo"), Path::new("1")];
    assert_eq!(example("history", &first), "milk\n");

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    example("import", &[&source, &at("src.img")]);
    assert!(example("tree", &[&at("src.img")]).contains("filesystem.rs\n"));
    for image in ["hello.img", "notes.img", "src.img"] {
        let checked = std::process::Command::new("btrfs")
            .args(["check", "--check-data-csum"])
            .arg(at(image))
            .output();
        match checked {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{image}: {text}");
            }
            Err(error) => eprintln!("no btrfs-progs here: {error}"),
        }
    }
}

/// Directories are made and removed through links, and the targets of links stay.
#[test]
fn directories_in_many_levels_follow_links_as_in_std() {
    let fs = volume();
    let host = tempfile::tempdir().expect("folder");
    let at = |path: &str| host.path().join(path);
    fs.create_dir("/real").expect("ours");
    std::fs::create_dir(at("real")).expect("host");
    for (target, link) in [("real", "link"), ("../nowhere", "real/dangling")] {
        fs.symlink(target, link).expect("ours");
        std::os::unix::fs::symlink(target, at(link)).expect("host");
    }
    fs.write("/file", "text").expect("ours");
    std::fs::write(at("file"), "text").expect("host");
    for path in ["link/new/deep", "link/new/../other", "file", "file/below", "real/dangling/x"] {
        let ours = fs.create_dir_all(path).is_ok();
        assert_eq!(ours, std::fs::create_dir_all(at(path)).is_ok(), "{path}");
    }
    for path in ["real/new/deep", "real/other", "nowhere", "real/dangling/x"] {
        assert_eq!(fs.exists(path).expect("ours"), at(path).exists(), "{path}");
    }
    fs.create_subvolume("/real/new/subvolume").expect("ours");
    fs.write("/real/new/subvolume/file", "text").expect("ours");
    fs.symlink("../file", "/real/new/link").expect("ours");
    fs.remove_dir_all("/link").expect_err("it is a link");
    fs.remove_dir_all("/real").expect("ours");
    assert!(!fs.exists("/real").expect("ours") && fs.exists("/file").expect("ours"));
}

/// A file with fs-verity is opened for reading alone, and has the digest of its content.
#[test]
fn a_file_with_verity_is_read_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("a.img");
    let fs = CreateOptions::new(256 << 20).create(&image).expect("a volume");
    fs.write("/file", "content").expect("written");
    assert_eq!(fs.verity("/file").expect("readable"), None);
    let options = buttress::VerityOptions::default();
    let writer = fs.open_with("/file", &FileOptions::new().write(true)).expect("it");
    let refused = writer.enable_verity(&options).expect_err("it is open for writing");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    drop(writer);
    let made = fs.open_file("/file").expect("it").enable_verity(&options).expect("enabled");
    assert_eq!(fs.verity("/file").expect("readable"), Some(made.clone()));
    let again = fs.enable_verity("/file", &options).expect_err("it has a tree");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    for how in [FileOptions::new().write(true), FileOptions::new().append(true)] {
        let refused = fs.open_with("/file", &how).expect_err("the content is fixed");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }
    fs.close().expect("a close");
    let fs = Filesystem::open(&image).expect("a volume");
    assert_eq!(fs.read_to_string("/file").expect("it reads"), "content");
    let digest = fs.open_file("/file").expect("it").verity().expect("readable").expect("enabled");
    assert_eq!(digest.digest(), made.digest());
}
